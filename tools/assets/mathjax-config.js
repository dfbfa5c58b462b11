// Equations: everything from one local file, nothing fetched, no menu that could fetch.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
    processEscapes: true,
    processEnvironments: true,
    tags: "none",
  },
  svg: { fontCache: "global", scale: 0.93 },
  options: { enableMenu: false, ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
  startup: {
    pageReady: () =>
      MathJax.startup.defaultPageReady().then(() => {
        // A formula in a line that is wider than the line scrolls by itself instead of widening the page.
        const fit = () =>
          document.querySelectorAll("mjx-container:not([display])").forEach((m) => {
            m.classList.remove("wide");
            const box = m.closest("p, li, td, figcaption, div");
            if (box && m.scrollWidth > box.clientWidth) m.classList.add("wide");
          });
        fit();
        window.addEventListener("resize", fit);
        document.documentElement.dataset.typeset = "done";
      }),
  },
};
