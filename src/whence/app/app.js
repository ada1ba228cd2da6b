(() => {
  const begin = () => {
    for (const [id, attributes] of [["whence-tip", { "aria-hidden": "true" }], ["whence-voice", { role: "status" }]]) {
      const made = document.createElement("div");
      made.id = id;
      made.className = id === "whence-tip" ? "whence" : "whence whence-unseen";
      made.hidden = id === "whence-tip";
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      document.body.append(made);
    }
    __EXPLANATIONS__
    follow();
  };

  // What was pressed gives way to another button, and choices are drawn anew: the focus goes along, and what the model
  // says is read out.
  function follow() {
    const find = (selector) => document.querySelector(selector);
    const pairs = [["whence-explain", "whence-cancel"], ["whence-attempt", "whence-attempt-cancel"], ["whence-flip", "whence-flip-cancel"]];
    let held = null; // selectors of which the first that is there has the focus
    let said = "";
    document.addEventListener("click", (event) => {
      if (!(event.target instanceof Element)) return;
      const pair = pairs.find((ids) => ids.some((id) => event.target.closest("#" + id)));
      const chosen = event.target.closest("#whence-choice [data-ask]");
      if (pair) held = pair.map((id) => "#" + id).reverse();
      else if (chosen) held = [`#whence-choice button[data-ask="${chosen.dataset.ask}"]`];
      else held = null;
    }, { capture: true });
    new MutationObserver(() => {
      const lost = !document.activeElement || document.activeElement === document.body;
      const next = held && held.map(find).find((found) => found);
      if (lost && next) next.focus({ preventScroll: true });
      const now = find("#whence-answer h2")?.textContent || "";
      if (now && now !== said) find("#whence-voice").textContent = now;
      said = now;
    }).observe(document.body, { childList: true, subtree: true });
  }

  // the page may be there already when this is read
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
