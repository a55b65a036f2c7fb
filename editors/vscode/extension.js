// Starts `sexpgpu lsp` and connects the editor with it; everything else is in the server.
const { window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = async function activate() {
  const command = workspace.getConfiguration("sexpgpu").get("command");
  client = new LanguageClient(
    "sexpgpu",
    "sexpgpu",
    { command, args: ["lsp"] },
    { documentSelector: [{ language: "sexpgpu" }] },
  );
  try {
    await client.start();
  } catch (error) {
    window.showErrorMessage(`\`${command} lsp\` does not start: ${error.message}. See the setting sexpgpu.command.`);
  }
};

exports.deactivate = () => client?.stop();
