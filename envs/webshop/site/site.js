// For programs that press an option's radio button, as they do on the official site. Links lie over the options: people need no script.
document.addEventListener("click", (event) => {
  const to = event.target instanceof HTMLInputElement && event.target.dataset.url;
  if (to) window.location.href = to;
});
