// Buttons that copy a text: they are hidden without JavaScript.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      // Without TLS a browser may have no clipboard for pages: select the text, and the keyboard copies it.
      getSelection().selectAllChildren(text);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// The box for the match expression is marked while what is written is not valid.
document.body.addEventListener("htmx:after:swap", () => {
  const box = document.getElementById("match");
  if (box) box.setAttribute("aria-invalid", String(document.getElementById("problem") !== null));
});
