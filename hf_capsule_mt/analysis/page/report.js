// The examples of a report, and what is closed on the screen but has to be on paper.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelectorAll(".routing-view").forEach((root) => routingView(root).show(data));
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((node) => { node.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((node) => { node.open = false; }));
})();
