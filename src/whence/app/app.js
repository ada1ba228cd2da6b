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
  };
  // the page may be there already when this is read
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
