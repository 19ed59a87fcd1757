/* A pasted message leads to the page of its error: the search of the site weighs words, a pattern is exact. */
(() => {
  const root = new URL("..", document.currentScript.src);
  let patterns;

  const load = () =>
    (patterns ??= fetch(new URL("errors/patterns.json", root))
      .then((answer) => answer.json())
      .then((rows) => rows.map((row) => ({ ...row, whole: new RegExp(`^(?:${row.pattern})$`, "s") })))
      .catch(() => []));

  /* The message may stand in a traceback, behind the class that was raised. */
  const readings = (text) => {
    const lines = text.trim().split("\n").map((line) => line.trim());
    const behind = lines.flatMap((line) => [...line.matchAll(/(?:: |['"`(])/g)].map((m) => line.slice(m.index + m[0].length)));
    return [text.trim(), ...lines, ...behind].filter(Boolean);
  };

  const pagesOf = async (text) => {
    const given = readings(text);
    const found = (await load()).filter((row) => given.some((one) => row.whole.test(one)));
    /* The pattern of one error may fit the tail of another's message: then the one with the most words is meant. */
    const exact = found.filter((row) => row.whole.test(text.trim()));
    return exact.length ? exact : found.slice(0, 1);
  };

  const links = (pages) =>
    pages.map((row) => {
      const link = document.createElement("a");
      link.className = "tp-hit";
      link.href = new URL(row.page, root);
      link.textContent = row.slug;
      return link;
    });

  document.addEventListener("keyup", (event) => {
    const input = event.target;
    const output = input.matches?.(".md-search__input") && document.querySelector(".md-search__output");
    if (!output) return;
    const asked = input.value;
    pagesOf(asked).then((pages) => {
      if (asked !== input.value) return;
      output.querySelector(".tp-hits")?.remove();
      if (!pages.length) return;
      const box = document.createElement("div");
      box.className = "tp-hits";
      box.append("This message is ", ...links(pages));
      output.prepend(box);
    });
  });
})();
