"use strict";
// The server writes the page; this only asks for it again. Nothing here builds HTML from data.
const PERIOD = 1000;

async function refresh() {
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
    document.title = page.title;
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
}

async function live() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
    await refresh();
  }
}
live();
