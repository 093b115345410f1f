// The terminal reads where to connect from its element, since this page may be reached under any name;
// what is typed goes into it without a click.

document.addEventListener("DOMContentLoaded", () => {
  const data = document.getElementById("terminal").dataset;
  const size = Number(new URLSearchParams(location.search).get("fontsize"));
  data.sessionWebsocketUrl = `${location.protocol.replace("http", "ws")}//${location.host}/ws`;
  data.fontSize = size >= 6 && size <= 60 ? size : 16;
});

addEventListener("load", () => setTimeout(() => document.querySelector(".xterm-helper-textarea")?.focus()));
