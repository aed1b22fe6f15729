// Gives each cell of a table its column's title, which site.css shows where a table does not fit, and marks empty ones.
for (const table of document.querySelectorAll("table.docutils")) {
    const titles = [...table.querySelectorAll("thead th")].map((title) => title.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, i) => {
            cell.classList.toggle("is-empty", !cell.textContent.trim());
            if (titles[i]) cell.setAttribute("data-label", titles[i]);
        });
    }
}
