// Starts the page: tabs, colours, the key, and the parts.

import { getJson, setKey } from "/ui/api.js";
import * as chat from "/ui/chat.js";
import { byId, el } from "/ui/dom.js";
import * as live from "/ui/live.js";
import * as platform from "/ui/platform.js";
import * as settings from "/ui/settings.js";

const VIEWS = ["chat", "platform"];
const THEMES = ["auto", "light", "dark"];

function select(name, focus) {
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", String(view === name));
    tab.tabIndex = view === name ? 0 : -1;
    byId(`view-${view}`).hidden = view !== name;
    if (view === name && focus) tab.focus();
  }
  history.replaceState(null, "", name === VIEWS[0] ? location.pathname : `#${name}`);
  if (name === "platform") platform.show();
}

function prepareTabs() {
  VIEWS.forEach((view, i) => {
    byId(`tab-${view}`).addEventListener("click", () => select(view, false));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(VIEWS[(i + step + VIEWS.length) % VIEWS.length], true);
    });
  });
  const wanted = location.hash.slice(1);
  if (VIEWS.includes(wanted)) select(wanted, false);
}

function prepareTheme() {
  const button = byId("theme-button");
  const use = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Colours: ${theme}`;
  };
  let theme = THEMES[0];
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    use(theme);
  });
}

function prepareKey() {
  const dialog = byId("key-dialog");
  byId("key-button").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "use") {
      setKey(byId("key").value);
      loadModels();
    }
    byId("key").value = "";
  });
}

async function loadModels() {
  try {
    const names = (await getJson("/v1/models")).data.map(({ id }) => id);
    byId("model").replaceChildren(...names.map((name) => el("option", {}, name)));
    byId("welcome-model").textContent = names[0];
    document.title = `${names[0]} · Hotshoe`;
  } catch (error) {
    if (error.status === 401) byId("key-dialog").showModal();
  }
}

settings.prepare();
chat.prepare();
prepareTabs();
prepareTheme();
prepareKey();
await loadModels();
live.watch((kind, text) => {
  const pill = byId("health");
  if (pill.textContent !== text) {
    pill.className = `pill ${kind}`;
    pill.textContent = text;
  }
});
