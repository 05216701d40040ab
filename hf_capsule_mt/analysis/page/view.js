"use strict";
/*
The view of routing: one sentence of one system at one step of its translation.

  const view = routingView(root);   root: an element with the content of view.html
  view.show(data);                  shows other data; null hides the view

data: {systems: [names], only: a name or nothing, sentences: [{source, reference, systems: {name: example}}]}.
An example is what analysis/examples.py makes of a sentence: {source, translation, source_tokens, target_tokens, and, where
there is such routing, guided, decoder, encoder, memory; source_words, target_words: [[text, number of tokens], ...]}.
While "growing" is true its translation is not finished. With "only" the view is about that system, and the others are
there to be compared with.
*/
function routingView(root) {
  // drawn from this times less to this times more than uniform
  const LARGEST_RATIO = 8;
  // what differs from uniform by less than this factor is called flat, and so is a PAST that moves by less than LEAST_MOVE
  const FLAT_RATIO = 1.1;
  const LEAST_MOVE = 0.05;
  const MILLISECONDS_PER_STEP = 900;
  // pixels of a map: names of its rows, and the narrowest column
  const ROW_NAMES = 112;
  const NARROWEST = 16;
  const state = { data: null, sentence: 0, system: null, step: 0, example: null, shown: null, timer: null };
  const built = { guided: null, decoder: null };

  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function option(select, value, text) {
    const node = element("option", "", text);
    node.value = value;
    select.append(node);
  }
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => sum(values) / values.length;
  const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
  const digits = (value) => (value === null ? "–" : value.toFixed(2));
  const factor = (value) => (value < 0.005 ? "0" : value.toPrecision(value < 0.995 ? 2 : 3));
  const indices = (length) => Array.from({ length }, (_, index) => index);
  // Elementwise mean of arrays, however deep
  const meanOf = (arrays) => (Array.isArray(arrays[0]) ? arrays[0].map((_, index) => meanOf(arrays.map((array) => array[index]))) : mean(arrays));

  // Shares of the groups in a source word; words and not groups add up to one where groups are attentions
  function shares(values) {
    const total = sum(values);
    return total > 0 ? values.map((value) => value / total) : values.map(() => 1 / values.length);
  }

  // Colours ----------------------------------------------------------------------------------------------------------

  // Mixed by the browser, which knows whether the page is light or dark
  const mix = (colour, share, ground) => `color-mix(in oklab, var(${colour}) ${(100 * share).toFixed(1)}%, ${ground})`;

  function balanceColour(share) {
    const balance = share[0] - share[1];
    return mix(balance > 0 ? "--past" : "--future", Math.abs(balance), "var(--middle)");
  }

  function ratioColour(ratio) {
    const place = Math.max(-1, Math.min(1, Math.log(ratio) / Math.log(LARGEST_RATIO)));
    return mix(place > 0 ? "--more" : "--less", Math.abs(place), "var(--middle)");
  }

  function scale(kind, from, to) {
    const node = element("span", `scale ${kind}`);
    node.append(from, element("i", kind === "hatching" ? "hatched" : ""), to);
    return node;
  }

  // Tokens and words -------------------------------------------------------------------------------------------------

  function units(tokens, words) {
    if (!words) return tokens.map((text, from) => ({ text, from, to: from + 1 }));
    let from = 0;
    return words.map(([text, count]) => ({ text, from, to: (from += count) }));
  }

  // The example in units of tokens or words: probabilities of a word are the mean over its tokens, attentions the sum; the
  // state of the source words is that before the first token of the target word
  function inUnits(example, join) {
    const source = units(example.source_tokens, join && example.source_words);
    const target = units(example.target_tokens, join && example.target_words);
    const shown = { source, target, probabilities: true };
    if (example.guided) {
      const { groups, assignment } = example.guided;
      shown.groups = groups;
      shown.probabilities = assignment.flat().every((values) => Math.abs(sum(values) - 1) < 0.02);
      const joined = shown.probabilities ? mean : sum;
      shown.assignment = target.map((word) => source.map(({ from, to }) =>
        groups.map((_, group) => joined(assignment[word.from].slice(from, to).map((values) => values[group])))));
    }
    if (example.decoder) shown.decoder = target.map(({ from, to }) => meanOf(example.decoder.agreement.slice(from, to)));
    if (example.memory) shown.memory = example.memory.agreement.map((words) => source.map(({ from, to }) => meanOf(words.slice(from, to))));
    return shown;
  }

  function showUnits() {
    const { example } = state;
    // the step stays at the token where it was
    const place = state.shown ? state.shown.target[state.step].from : null;
    state.shown = inUnits(example, part("join").checked);
    const { target } = state.shown;
    if (place !== null) state.step = target.findIndex(({ from, to }) => from <= place && place < to);
    state.step = Math.min(state.step, target.length - 1);
    buildTarget();
    if (example.guided) buildGuided();
    if (example.decoder) built.decoder = buildHeats("decoder", state.shown.decoder[0]);
    if (example.memory) buildMemory();
    if (example.encoder) fillHeats(buildHeats("encoder", example.encoder.agreement), example.encoder.agreement);
    showStep();
  }

  // Sentences and systems ------------------------------------------------------------------------------------------

  // Which words of a text are not in another one, in order (longest common subsequence)
  function differing(words, others) {
    const best = indices(words.length + 1).map(() => new Array(others.length + 1).fill(0));
    for (let i = words.length - 1; i >= 0; i -= 1) {
      for (let j = others.length - 1; j >= 0; j -= 1) {
        best[i][j] = words[i] === others[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
      }
    }
    const found = new Set(indices(words.length));
    for (let i = 0, j = 0; i < words.length && j < others.length;) {
      if (words[i] === others[j]) { found.delete(i); i += 1; j += 1; }
      else if (best[i + 1][j] >= best[i][j + 1]) i += 1;
      else j += 1;
    }
    return found;
  }

  // Marked where it differs from the first system's translation; of two systems both are marked
  function translationNode(name, names, systems) {
    const text = systems[name].translation;
    const node = element("dd", systems[name].growing ? "growing" : "");
    if (!text.trim()) {
      if (!systems[name].growing) node.append(element("span", "empty", "empty: this system translates the sentence as nothing"));
      return node;
    }
    const other = name !== names[0] ? names[0] : names.length === 2 ? names[1] : null;
    const words = text.split(/\s+/);
    const open = systems[name].growing || other === null || systems[other].growing;
    const marked = open ? new Set() : differing(words, systems[other].translation.split(/\s+/));
    words.forEach((word, index) => {
      node.append(marked.has(index) ? element("mark", "", word) : word, index < words.length - 1 ? " " : "");
    });
    return node;
  }

  function showTexts() {
    const { only, sentences } = state.data;
    const sentence = sentences[state.sentence];
    const names = state.data.systems.filter((name) => sentence.systems[name]);
    const list = part("texts");
    list.replaceChildren();
    if (!only) list.append(element("dt", "", "Source"), element("dd", "", sentence.source));
    if (sentence.reference) list.append(element("dt", "", "Reference"), element("dd", "", sentence.reference));
    for (const name of names.filter((name) => !only || name === only)) {
      const chosen = !only && name === state.system && names.length > 1;
      const title = only && state.data.systems.length === 1 ? "Translation" : name;
      list.append(element("dt", chosen ? "chosen" : "", title), translationNode(name, names, sentence.systems));
    }
    part("texts-note").hidden = !list.querySelector("mark");
    part("texts-note").textContent = `Underlined: ${names.length === 2 ? "what the two translations do not share" : `not in the translation of ${names[0]}`}.`;
  }

  function showSystems() {
    const sentence = state.data.sentences[state.sentence];
    const names = state.data.systems.filter((name) => sentence.systems[name]);
    if (state.data.only) state.system = state.data.only;
    if (!names.includes(state.system)) state.system = names[0];
    const select = part("system");
    select.replaceChildren();
    names.forEach((name) => option(select, name, name));
    select.value = state.system;
    part("system-label").hidden = names.length < 2 || Boolean(state.data.only);
  }

  function showExample() {
    pause();
    showSystems();
    showTexts();
    const example = state.data.sentences[state.sentence].systems[state.system];
    state.example = example;
    state.shown = null;
    const steps = Boolean(example.guided || example.decoder);
    const routed = steps || Boolean(example.memory || example.encoder);
    for (const name of ["stepper", "status", "translation-part"]) part(name).hidden = !steps;
    for (const name of ["guided", "decoder", "memory", "encoder"]) part(`${name}-part`).hidden = !example[name];
    part("nothing").hidden = routed || Boolean(example.growing);
    const pieces = [...(example.source_words || []), ...(steps && example.target_words || [])];
    part("join-label").hidden = !routed || pieces.every(([, count]) => count === 1);
    root.classList.toggle("guided", Boolean(example.guided));
    root.classList.toggle("single", Boolean(state.data.only));
    if (routed) showUnits();
  }

  // One step ---------------------------------------------------------------------------------------------------------

  // A button that goes to a step; of each row of them the current one alone is reached by Tab, as arrow keys do the rest
  function stepButton(index, text) {
    const button = element("button", "", text);
    button.type = "button";
    button.dataset.step = index;
    button.addEventListener("click", () => goTo(index));
    return button;
  }

  function markStep(buttons) {
    const focused = buttons.includes(document.activeElement);
    buttons.forEach((button) => {
      const now = Number(button.dataset.step) === state.step;
      button.tabIndex = now ? 0 : -1;
      if (now) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
      if (now && focused) button.focus();
    });
  }

  function buildTarget() {
    part("target").replaceChildren(...state.shown.target.map(({ text }, index) => {
      const item = element("li");
      item.append(stepButton(index, text));
      return item;
    }));
  }

  function showStep() {
    const { shown, step, example } = state;
    const length = shown.target.length;
    part("step").max = length;
    part("step").value = step + 1;
    part("step").setAttribute("aria-valuetext", `${step + 1} of ${length}: ${shown.target[step].text}`);
    part("position").textContent = `Step ${step + 1} of ${length}`;
    part("previous").disabled = step === 0;
    part("next").disabled = step === length - 1;
    const buttons = [...part("target").querySelectorAll("button")];
    buttons.forEach((button, index) => { button.className = index < step ? "done" : index === step ? "now" : "later"; });
    markStep(buttons);
    const moved = example.guided ? largestMove() : null;
    if (example.guided) showGuided(moved);
    if (example.decoder) fillHeats(built.decoder, shown.decoder[step]);
    part("status").textContent = statusText(moved);
  }

  function statusText(moved) {
    const { shown, step, example } = state;
    const text = `Step ${step + 1} produces “${shown.target[step].text}”${example.translation.trim() ? "" : ", the end: the translation is empty"}.`;
    if (!example.guided || step === 0) return text;
    const before = `“${shown.target[step - 1].text}”`;
    if (!moved) return `${text} After ${before} no source word moved to PAST.`;
    const word = shown.source[moved.word].text;
    return `${text} After ${before} the source word “${word}” moved to PAST most: ${digits(moved.from)} to ${digits(moved.to)}.`;
  }

  // The source word whose PAST probability rose most since the step before
  function largestMove() {
    const { shown, step } = state;
    if (step === 0) return null;
    const [before, now] = [shown.assignment[step - 1], shown.assignment[step]];
    const rises = now.map((values, word) => values[0] - before[word][0]);
    const word = rises.indexOf(Math.max(...rises));
    return rises[word] >= LEAST_MOVE ? { word, from: before[word][0], to: now[word][0] } : null;
  }

  // PAST and FUTURE ----------------------------------------------------------------------------------------------------

  function buildGuided() {
    const { shown } = state;
    const words = shown.source.map(({ text }) => {
      const item = element("li");
      const bar = element("span", "parts");
      bar.setAttribute("aria-hidden", "true");
      const bars = shown.groups.map((group) => element("span", group));
      bar.append(...bars);
      item.append(element("span", "", text), bar);
      return { item, bars };
    });
    part("source").replaceChildren(...words.map(({ item }) => item));
    const totals = shown.groups.map((group) => {
      const item = element("li");
      const value = element("span");
      item.append(element("i", `swatch ${group}`), element("span", "", `${group} `), value);
      return { item, value };
    });
    part("totals").replaceChildren(...totals.map(({ item }) => item));
    part("guided-note").textContent = shown.probabilities
      ? "The bar below a word and its colour are its probabilities in the groups; a frame marks the largest move to PAST since the step before."
      : "The bar below a word and its colour compare the attention that the groups pay to it; a frame marks the largest rise of PAST since the step before.";
    built.guided = { words, totals, columns: 0, cells: [], buttons: [] };
    buildTimelines();
    const scales = [scale("balance", "all FUTURE", "all PAST")];
    if (shown.groups.length > 2) scales.push(scale("hatching", "", "REDUNDANT, the stronger the more"));
    part("timeline-scale").replaceChildren(...scales);
    part("timeline-note").textContent = timelineNote();
  }

  // What is seen: from where to where the groups went, or that nothing moved
  function timelineNote() {
    const { assignment, groups, source } = state.shown;
    const axes = "Source words from top to bottom, target words from left to right; the frame is the current step.";
    const averages = assignment.map((words) => meanOf(words.map(shares)));
    const spread = (values) => Math.max(...values) - Math.min(...values);
    const moves = source.map((_, word) => spread(assignment.map((words) => words[word][0])));
    if (Math.max(...moves) < LEAST_MOVE) return `${axes} Flat: PAST of no source word changes by ${LEAST_MOVE} or more.`;
    const [first, last] = [averages[0], averages[averages.length - 1]];
    const seen = groups.map((group, index) => `${group} goes from ${percent(first[index])} to ${percent(last[index])}`);
    return `${axes} Mean over the source words, first step to last: ${seen.join(", ")}.`;
  }

  // As many maps below each other as the steps need, so that no column is hidden or too narrow for a finger
  function buildTimelines() {
    const { shown } = state;
    const room = Math.max(4, Math.floor(((part("timeline").clientWidth || 600) - ROW_NAMES) / NARROWEST));
    const length = shown.target.length;
    const columns = Math.ceil(length / Math.ceil(length / room));
    if (columns === built.guided.columns) return;
    Object.assign(built.guided, { columns, cells: shown.source.map(() => []), buttons: [] });
    const maps = [];
    for (let from = 0; from < length; from += columns) maps.push(buildTimeline(from, Math.min(from + columns, length), columns));
    part("timeline").replaceChildren(...maps);
  }

  function buildTimeline(from, to, columns) {
    const { shown } = state;
    const grid = element("div", "timeline");
    grid.style.gridTemplateColumns = `max-content repeat(${columns}, minmax(0, 1.7rem))`;
    const steps = indices(to - from).map((index) => from + index);
    const gap = () => Array.from({ length: columns - steps.length }, () => element("span"));
    const buttons = steps.map((step) => stepButton(step, shown.target[step].text));
    buttons.forEach((button, index) => button.setAttribute("aria-label", `Step ${steps[index] + 1}: ${button.textContent}`));
    built.guided.buttons.push(...buttons);
    grid.append(element("span"), ...buttons, ...gap());
    shown.source.forEach(({ text }, word) => {
      const name = element("span", "word", text);
      name.title = text;
      const cells = steps.map((step) => {
        const values = shown.assignment[step][word];
        const share = shares(values);
        const cell = element("span", share.length > 2 ? "cell hatched" : "cell");
        cell.style.backgroundColor = balanceColour(share);
        if (share.length > 2) cell.style.setProperty("--share", `${100 * share[2]}%`);
        cell.title = `${text}, before “${shown.target[step].text}”: ${described(values)}`;
        cell.addEventListener("click", () => goTo(step));
        return cell;
      });
      built.guided.cells[word].push(...cells);
      grid.append(name, ...cells, ...gap());
    });
    return grid;
  }

  function described(values) {
    return state.shown.groups.map((group, index) => `${group} ${digits(values[index])}`).join(", ");
  }

  function showGuided(moved) {
    const { shown, step } = state;
    const { words, totals } = built.guided;
    const assignment = shown.assignment[step];
    words.forEach(({ item, bars }, word) => {
      const share = shares(assignment[word]);
      bars.forEach((bar, index) => { bar.style.width = `${100 * share[index]}%`; });
      item.style.backgroundColor = `color-mix(in oklab, ${balanceColour(share)} 38%, var(--v-paper))`;
      item.title = described(assignment[word]);
      item.setAttribute("aria-label", `${shown.source[word].text}: ${item.title}`);
      item.classList.toggle("moved", moved !== null && moved.word === word);
    });
    totals.forEach(({ value }, index) => {
      value.textContent = percent(mean(assignment.map((values) => shares(values)[index])));
    });
    markTimelines();
  }

  function markTimelines() {
    const { cells, buttons } = built.guided;
    cells.forEach((row) => row.forEach((cell, index) => cell.classList.toggle("now", index === state.step)));
    buttons.forEach((button, index) => { button.className = index === state.step ? "now" : ""; });
    markStep(buttons);
  }

  // Layers and capsules ----------------------------------------------------------------------------------------------

  function buildHeats(stack, agreement) {
    const groups = agreement[0][0].length;
    const capsules = state.example[stack].capsules || null;
    const heats = agreement.map((layers, iteration) => {
      const node = element("div", "heat");
      node.setAttribute("role", "img");
      const range = element("span", "range");
      const title = element("p");
      title.append(element("b", "", `Iteration ${iteration + 1}`), range);
      node.append(title);
      const rows = layers.map((_, layer) => {
        const cells = indices(groups).map(() => element("span"));
        const strip = element("div", "cells");
        strip.append(...cells);
        const share = element("span", "share");
        node.append(element("span", "layer", `layer ${layer + 1}`), strip, share);
        return { cells, share };
      });
      return { node, rows, range, iteration };
    });
    part(stack).replaceChildren(...heats.map(({ node }) => node));
    part(`${stack}-scale`).replaceChildren(scale("ratios", `1/${LARGEST_RATIO} or less`, `${LARGEST_RATIO} times uniform or more`));
    part(`${stack}-note`).textContent = "Probability of the capsules (columns) for a layer's vote; flat: nowhere further from uniform than by a factor of "
      + `${FLAT_RATIO}. ${capsules && capsules > groups ? `A column is the mean of about ${Math.round(capsules / groups)} of ${capsules} capsules. ` : ""}`
      + "On the right: the layer's part in the capsules.";
    return { heats, capsules };
  }

  // "flat", or from where to where the ratios go
  function rangeText(ratios, unit) {
    const [least, most] = [Math.min(...ratios), Math.max(...ratios)];
    return most <= FLAT_RATIO && least >= 1 / FLAT_RATIO ? "flat" : `${factor(least)} to ${factor(most)} ${unit}`;
  }

  function fillHeats({ heats, capsules }, agreement) {
    heats.forEach(({ node, rows, range, iteration }) => {
      const layers = agreement[iteration];
      const totals = layers[0].map((_, capsule) => sum(layers.map((layer) => layer[capsule])));
      const all = [];
      const texts = rows.map(({ cells, share }, layer) => {
        // groups of equal size have 1/N as their mean
        const uniform = capsules ? 1 / capsules : mean(layers[layer]);
        cells.forEach((cell, capsule) => {
          const ratio = layers[layer][capsule] / uniform;
          all.push(ratio);
          cell.style.backgroundColor = ratioColour(ratio);
          cell.title = `layer ${layer + 1}, column ${capsule + 1}: ${digits(ratio)} times uniform`;
        });
        share.textContent = percent(mean(layers[layer].map((value, capsule) => (totals[capsule] > 0 ? value / totals[capsule] : 0))));
        return `layer ${layer + 1} ${share.textContent}`;
      });
      range.textContent = rangeText(all, "times");
      node.setAttribute("aria-label", `Iteration ${iteration + 1}, ${range.textContent}; part in the capsules: ${texts.join(", ")}`);
    });
  }

  function buildMemory() {
    const select = part("memory-iteration");
    const { memory } = state.shown;
    const chosen = select.options.length === memory.length ? select.value : memory.length - 1;
    select.replaceChildren();
    indices(memory.length).forEach((iteration) => option(select, iteration, String(iteration + 1)));
    select.value = chosen;
    showMemory();
  }

  function showMemory() {
    const { shown } = state;
    const agreement = shown.memory[Number(part("memory-iteration").value)];
    const largest = Math.max(...shown.memory.flat(2));
    const capsules = agreement[0].length;
    const items = indices(capsules).map((capsule) => {
      const values = agreement.map((word) => word[capsule]);
      const words = element("span", "words");
      shown.source.forEach(({ text }, word) => {
        const node = element("span", "", text);
        node.style.backgroundColor = `color-mix(in srgb, var(--word) ${((60 * values[word]) / largest).toFixed(1)}%, transparent)`;
        node.title = `${text}: ${digits(values[word])}`;
        words.append(node, " ");
      });
      const item = element("li");
      item.append(element("span", "name", `capsule ${capsule + 1} · ${percent(sum(values) / values.length)}`), words);
      return item;
    });
    part("memory").replaceChildren(...items);
    part("memory-scale").replaceChildren(scale("shades", "Probability 0", digits(largest)));
    const seen = rangeText(agreement.flat().map((value) => capsules * value), `times 1/${capsules}`);
    part("memory-note").textContent = `Probability of the capsule for a word, in this iteration ${seen}. In percent: the capsule's share of the words.`;
  }

  // Moving -----------------------------------------------------------------------------------------------------------

  function goTo(step) {
    pause();
    state.step = Math.max(0, Math.min(step, state.shown.target.length - 1));
    showStep();
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    part("play").textContent = "Play";
    part("play").setAttribute("aria-pressed", "false");
    part("status").removeAttribute("aria-live");
  }

  function play() {
    if (state.timer !== null) return pause();
    const last = state.shown.target.length - 1;
    if (state.step === last) goTo(0);
    part("play").textContent = "Pause";
    part("play").setAttribute("aria-pressed", "true");
    // a screen reader could not keep up
    part("status").setAttribute("aria-live", "off");
    state.timer = setInterval(() => {
      state.step += 1;
      showStep();
      if (state.step >= last) pause();
    }, MILLISECONDS_PER_STEP);
  }

  function onKey(event) {
    const moves = { ArrowLeft: state.step - 1, ArrowRight: state.step + 1, Home: 0, End: Infinity };
    // fields have their own keys
    if (!(event.key in moves) || /^(SELECT|INPUT)$/.test(event.target.tagName) || part("stepper").hidden) return;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    goTo(moves[event.key]);
  }

  function show(data) {
    pause();
    root.hidden = !data;
    if (!data) return;
    state.data = data;
    Object.assign(state, { sentence: 0, step: 0, system: data.only || null });
    // the first system that has steps is the more interesting one to begin with
    const first = data.sentences[0].systems;
    state.system = state.system || data.systems.find((name) => first[name] && (first[name].guided || first[name].decoder)) || null;
    const select = part("sentence");
    select.replaceChildren();
    data.sentences.forEach(({ source }, index) => option(select, index, `${index + 1}. ${source.length > 60 ? `${source.slice(0, 58)}…` : source}`));
    part("sentence-label").hidden = data.sentences.length < 2;
    showExample();
  }

  part("sentence").addEventListener("change", (event) => { state.sentence = Number(event.target.value); state.step = 0; showExample(); });
  part("system").addEventListener("change", (event) => { state.system = event.target.value; showExample(); });
  part("join").addEventListener("change", showUnits);
  part("memory-iteration").addEventListener("change", showMemory);
  part("step").addEventListener("input", (event) => goTo(Number(event.target.value) - 1));
  part("previous").addEventListener("click", () => goTo(state.step - 1));
  part("next").addEventListener("click", () => goTo(state.step + 1));
  part("play").addEventListener("click", play);
  root.addEventListener("keydown", onKey);
  new ResizeObserver(() => {
    if (!state.shown || !state.shown.assignment || !built.guided) return;
    buildTimelines();
    markTimelines();
  }).observe(part("timeline"));
  return { show };
}
