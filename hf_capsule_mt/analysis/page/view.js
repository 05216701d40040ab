"use strict";
// The view of the examples: one sentence of one system at one step of its translation.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = { PAST: [0, 114, 178], FUTURE: [230, 159, 0], REDUNDANT: [181, 181, 181] };
  // drawn from this times less to this times more than uniform
  const LARGEST_RATIO = 8;
  const MILLISECONDS_PER_STEP = 900;
  const LEAST_MOVE = 0.05;
  const $ = (id) => document.getElementById(id);
  const state = { sentence: 0, system: data.systems[0], step: 0, example: null, timer: null };
  const parts = { guided: null, decoder: null };

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => sum(values) / values.length;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const digits = (value) => (value === null ? "–" : value.toFixed(2));
  const rgb = (colour) => `rgb(${colour.map(Math.round).join(", ")})`;
  const indices = (length) => Array.from({ length }, (_, index) => index);

  // Mixture of colours by their shares
  function mixed(groups, shares, strength) {
    return [0, 1, 2].map((channel) => {
      const colour = sum(groups.map((group, index) => COLOURS[group][channel] * shares[index]));
      return strength * colour + (1 - strength) * 255;
    });
  }

  // Shares of the groups in a source word; words and not groups add up to one where groups are attentions
  function shares(values) {
    const total = sum(values);
    return total > 0 ? values.map((value) => value / total) : values.map(() => 1 / values.length);
  }

  function ratioColour(ratio) {
    const place = Math.max(-1, Math.min(1, Math.log(ratio) / Math.log(LARGEST_RATIO)));
    const end = place > 0 ? [178, 24, 43] : [33, 102, 172];
    return rgb(end.map((channel) => 244 + (channel - 244) * Math.abs(place)));
  }

  function option(select, value, text) {
    const node = element("option", "", text);
    node.value = value;
    select.append(node);
  }

  // Sentences and systems ------------------------------------------------------------------------------------------

  function showTexts() {
    const sentence = data.sentences[state.sentence];
    const list = $("texts");
    list.replaceChildren();
    const add = (title, text, chosen) => {
      if (!text) return;
      list.append(element("dt", chosen ? "chosen" : "", title), element("dd", "", text));
    };
    add("Source", sentence.source);
    add("Reference", sentence.reference);
    for (const name of data.systems) {
      if (sentence.systems[name]) add(name, sentence.systems[name].translation, name === state.system);
    }
  }

  function showSystems() {
    const sentence = data.sentences[state.sentence];
    const names = data.systems.filter((name) => sentence.systems[name]);
    if (!names.includes(state.system)) state.system = names[0];
    const select = $("system");
    select.replaceChildren();
    names.forEach((name) => option(select, name, name));
    select.value = state.system;
    $("system-label").hidden = names.length < 2;
  }

  function showExample() {
    pause();
    showSystems();
    showTexts();
    const example = data.sentences[state.sentence].systems[state.system];
    state.example = example;
    const steps = Boolean(example.guided || example.decoder);
    state.step = Math.min(state.step, example.target_tokens.length - 1);
    $("stepper").hidden = $("status").hidden = $("translation-part").hidden = !steps;
    for (const name of ["guided", "decoder", "memory", "encoder"]) $(`${name}-part`).hidden = !example[name];
    $("nothing").hidden = steps || Boolean(example.memory || example.encoder);
    $("step").max = example.target_tokens.length;
    $("view").classList.toggle("guided", Boolean(example.guided));
    buildTarget();
    if (example.guided) buildGuided();
    if (example.decoder) parts.decoder = buildHeats($("decoder"), "decoder", example.decoder.agreement[0]);
    if (example.memory) buildMemory();
    if (example.encoder) {
      const encoder = buildHeats($("encoder"), "encoder", example.encoder.agreement);
      fillHeats(encoder, example.encoder.agreement);
    }
    showStep();
  }

  // One step ---------------------------------------------------------------------------------------------------------

  function buildTarget() {
    const list = $("target");
    list.replaceChildren();
    state.example.target_tokens.forEach((token, index) => {
      const button = element("button", "", token);
      button.type = "button";
      // the slider does the same for the keyboard
      button.tabIndex = -1;
      button.addEventListener("click", () => goTo(index));
      const item = element("li");
      item.append(button);
      list.append(item);
    });
  }

  function showStep() {
    const { example, step } = state;
    const length = example.target_tokens.length;
    $("step").value = step + 1;
    $("step").setAttribute("aria-valuetext", `${step + 1} of ${length}: ${example.target_tokens[step]}`);
    $("position").textContent = `Step ${step + 1} of ${length}`;
    $("previous").disabled = step === 0;
    $("next").disabled = step === length - 1;
    [...$("target").querySelectorAll("button")].forEach((button, index) => {
      button.className = index < step ? "done" : index === step ? "now" : "later";
      if (index === step) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    const moved = example.guided ? largestMove() : null;
    if (example.guided) showGuided(moved);
    if (example.decoder) fillHeats(parts.decoder, example.decoder.agreement[step]);
    $("status").textContent = statusText(moved);
  }

  function statusText(moved) {
    const { example, step } = state;
    const text = `Step ${step + 1} produces “${example.target_tokens[step]}”.`;
    if (!example.guided || step === 0) return text;
    const before = `“${example.target_tokens[step - 1]}”`;
    if (!moved) return `${text} After ${before} no source word moved to PAST.`;
    const word = example.source_tokens[moved.word];
    return `${text} After ${before} the source word “${word}” moved to PAST most: ${digits(moved.from)} to ${digits(moved.to)}.`;
  }

  // The source word whose PAST probability rose most since the step before
  function largestMove() {
    const { example, step } = state;
    if (step === 0) return null;
    const [before, now] = [example.guided.assignment[step - 1], example.guided.assignment[step]];
    const rises = now.map((values, word) => values[0] - before[word][0]);
    const word = rises.indexOf(Math.max(...rises));
    return rises[word] >= LEAST_MOVE ? { word, from: before[word][0], to: now[word][0] } : null;
  }

  function buildGuided() {
    const { example } = state;
    const groups = example.guided.groups;
    const words = example.source_tokens.map((token) => {
      const item = element("li");
      const bar = element("span", "parts");
      bar.setAttribute("aria-hidden", "true");
      const bars = groups.map((group) => element("span", group));
      bar.append(...bars);
      item.append(element("span", "", token), bar);
      return { item, bars };
    });
    $("source").replaceChildren(...words.map(({ item }) => item));
    const totals = groups.map((group) => {
      const item = element("li");
      const value = element("span");
      item.append(element("i", group), element("span", "", `${group} `), value);
      return { item, value };
    });
    $("totals").replaceChildren(...totals.map(({ item }) => item));
    const sums = example.guided.assignment.flat().map(sum);
    $("guided-note").textContent = sums.every((total) => Math.abs(total - 1) < 0.02)
      ? "The bar below a word and its colour are its probabilities in the groups; a frame marks the largest move to PAST since the step before."
      : "The bar below a word and its colour compare the attention that the groups pay to it; a frame marks the largest rise of PAST since the step before.";
    parts.guided = { words, totals, cells: buildTimeline() };
  }

  function buildTimeline() {
    const { example } = state;
    const length = example.target_tokens.length;
    const grid = $("timeline");
    grid.replaceChildren();
    grid.setAttribute("role", "img");
    grid.setAttribute("aria-label", "Groups of the source words at all steps");
    grid.style.gridTemplateColumns = `minmax(3rem, max-content) repeat(${length}, minmax(0, 1.6rem))`;
    return example.source_tokens.map((token, word) => {
      grid.append(element("span", "word", token));
      return indices(length).map((step) => {
        const values = example.guided.assignment[step][word];
        const cell = element("span", "cell");
        cell.style.backgroundColor = rgb(mixed(example.guided.groups, shares(values), 1));
        cell.title = `${token}, before “${example.target_tokens[step]}”: ${described(values)}`;
        cell.addEventListener("click", () => goTo(step));
        grid.append(cell);
        return cell;
      });
    });
  }

  function described(values) {
    return state.example.guided.groups.map((group, index) => `${group} ${digits(values[index])}`).join(", ");
  }

  function showGuided(moved) {
    const { example, step } = state;
    const { words, totals, cells } = parts.guided;
    const groups = example.guided.groups;
    const assignment = example.guided.assignment[step];
    words.forEach(({ item, bars }, word) => {
      const share = shares(assignment[word]);
      bars.forEach((bar, index) => { bar.style.width = `${100 * share[index]}%`; });
      item.style.backgroundColor = rgb(mixed(groups, share, 0.3));
      item.title = described(assignment[word]);
      item.setAttribute("aria-label", `${example.source_tokens[word]}: ${item.title}`);
      item.classList.toggle("moved", moved !== null && moved.word === word);
    });
    totals.forEach(({ value }, index) => {
      value.textContent = percent(mean(assignment.map((values) => shares(values)[index])));
    });
    cells.forEach((row) => row.forEach((cell, index) => cell.classList.toggle("now", index === step)));
  }

  // Layers and capsules ----------------------------------------------------------------------------------------------

  function buildHeats(container, stack, agreement) {
    const groups = agreement[0][0].length;
    const capsules = state.example[stack].capsules || data.capsules[state.system][stack] || null;
    const heats = agreement.map((layers, iteration) => {
      const node = element("div", "heat");
      node.setAttribute("role", "img");
      node.append(element("p", "", `Iteration ${iteration + 1}`));
      const rows = layers.map((_, layer) => {
        const cells = indices(groups).map(() => element("span"));
        const strip = element("div", "cells");
        strip.append(...cells);
        const share = element("span", "share");
        node.append(element("span", "layer", `layer ${layer + 1}`), strip, share);
        return { cells, share };
      });
      return { node, rows, iteration };
    });
    container.replaceChildren(...heats.map(({ node }) => node));
    const note = $(`${stack}-note`);
    note.replaceChildren(
      `Probability of the capsules for a layer's vote, relative to uniform: 1/${LARGEST_RATIO}`,
      element("span", "scale ratios"),
      `${LARGEST_RATIO} times. `,
      capsules && capsules > groups ? `A column is the mean of about ${Math.round(capsules / groups)} of ${capsules} capsules. ` : "",
      "On the right: the layer's part in the capsules.",
    );
    return { heats, capsules };
  }

  function fillHeats({ heats, capsules }, agreement) {
    heats.forEach(({ node, rows, iteration }) => {
      const layers = agreement[iteration];
      const totals = layers[0].map((_, capsule) => sum(layers.map((layer) => layer[capsule])));
      const texts = rows.map(({ cells, share }, layer) => {
        // groups of equal size have 1/N as their mean
        const uniform = capsules ? 1 / capsules : mean(layers[layer]);
        cells.forEach((cell, capsule) => {
          const ratio = layers[layer][capsule] / uniform;
          cell.style.backgroundColor = ratioColour(ratio);
          cell.title = `layer ${layer + 1}, column ${capsule + 1}: ${digits(ratio)} times uniform`;
        });
        share.textContent = percent(mean(layers[layer].map((value, capsule) => (totals[capsule] > 0 ? value / totals[capsule] : 0))));
        return `layer ${layer + 1} ${share.textContent}`;
      });
      node.setAttribute("aria-label", `Iteration ${iteration + 1}, part in the capsules: ${texts.join(", ")}`);
    });
  }

  function buildMemory() {
    const select = $("memory-iteration");
    const iterations = state.example.memory.agreement.length;
    select.replaceChildren();
    indices(iterations).forEach((iteration) => option(select, iteration, String(iteration + 1)));
    select.value = iterations - 1;
    showMemory();
  }

  function showMemory() {
    const { example } = state;
    const agreement = example.memory.agreement[Number($("memory-iteration").value)];
    const largest = Math.max(...example.memory.agreement.flat(2));
    const items = agreement[0].map((_, capsule) => {
      const values = agreement.map((word) => word[capsule]);
      const words = element("span", "words");
      example.source_tokens.forEach((token, word) => {
        const node = element("span", "", token);
        node.style.backgroundColor = `rgba(0, 114, 178, ${(0.6 * values[word]) / largest})`;
        node.title = `${token}: ${digits(values[word])}`;
        words.append(node, " ");
      });
      const item = element("li");
      item.append(element("span", "name", `capsule ${capsule + 1} · ${percent(sum(values) / values.length)}`), words);
      return item;
    });
    $("memory").replaceChildren(...items);
    $("memory-note").replaceChildren("Probability of the capsule: 0", element("span", "scale shades"), `${digits(largest)}. In percent: its share of the words.`);
  }

  // Moving -----------------------------------------------------------------------------------------------------------

  function goTo(step) {
    pause();
    state.step = Math.max(0, Math.min(step, state.example.target_tokens.length - 1));
    showStep();
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    $("play").textContent = "Play";
    $("play").setAttribute("aria-pressed", "false");
    $("status").removeAttribute("aria-live");
  }

  function play() {
    if (state.timer !== null) return pause();
    const last = state.example.target_tokens.length - 1;
    if (state.step === last) goTo(0);
    $("play").textContent = "Pause";
    $("play").setAttribute("aria-pressed", "true");
    // a screen reader could not keep up
    $("status").setAttribute("aria-live", "off");
    state.timer = setInterval(() => {
      state.step += 1;
      showStep();
      if (state.step >= last) pause();
    }, MILLISECONDS_PER_STEP);
  }

  function onKey(event) {
    const moves = { ArrowLeft: state.step - 1, ArrowRight: state.step + 1, Home: 0, End: Infinity };
    // fields have their own keys
    if (!(event.key in moves) || /^(SELECT|INPUT)$/.test(event.target.tagName) || $("stepper").hidden) return;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    goTo(moves[event.key]);
  }

  data.sentences.forEach((sentence, index) => option($("sentence"), index, `${index + 1}. ${sentence.source.length > 60 ? `${sentence.source.slice(0, 58)}…` : sentence.source}`));
  $("sentence").addEventListener("change", (event) => { state.sentence = Number(event.target.value); state.step = 0; showExample(); });
  $("system").addEventListener("change", (event) => { state.system = event.target.value; showExample(); });
  $("memory-iteration").addEventListener("change", showMemory);
  $("step").addEventListener("input", (event) => goTo(Number(event.target.value) - 1));
  $("previous").addEventListener("click", () => goTo(state.step - 1));
  $("next").addEventListener("click", () => goTo(state.step + 1));
  $("play").addEventListener("click", play);
  $("view").addEventListener("keydown", onKey);
  // what is closed would not be printed
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((node) => { node.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((node) => { node.open = false; }));
  // the first system that has steps is the more interesting one to begin with
  const first = data.sentences[0].systems;
  state.system = data.systems.find((name) => first[name] && (first[name].guided || first[name].decoder)) || state.system;
  $("view").hidden = false;
  showExample();
})();
