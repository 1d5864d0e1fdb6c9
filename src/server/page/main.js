// Starts the page: the dialog for the API key, the chat, the live view.
import { setKeySource } from "./api.js";
import { startChat } from "./chat.js";
import { byId } from "./dom.js";
import { startLiveView } from "./live.js";

setKeySource(() => new Promise((resolve) => {
  const dialog = byId("key-dialog");
  const input = byId("key");
  dialog.addEventListener("close", () => {
    const key = dialog.returnValue === "use" ? input.value.trim() : "";
    input.value = "";
    resolve(key === "" ? null : key);
  }, { once: true });
  dialog.returnValue = "";
  dialog.showModal();
}));
startChat();
startLiveView();
