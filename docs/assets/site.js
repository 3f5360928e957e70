/* What scrolls sideways is reached by the keyboard, also the tables that the theme wraps later. */
const reach = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .highlight-ipynb, .jp-OutputArea-output, pre").forEach((part) => {
    part.tabIndex = 0;
  });
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
reach();
