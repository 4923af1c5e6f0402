// The scores of Sphinx, except that how-to guides come first, above all those with the wanted words in their own titles,
// and decisions and changes last. Among equals, a guide to a migration is the last one.
const wanted = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().match(/\w+/g) ?? [];

var Scorer = {
  score: ([docname, title, , , score]) => {
    if (docname.startsWith("explanation/decisions/") || docname === "changes") return score / 100;
    if (!docname.startsWith("how-to/") || docname === "how-to/index") return score;
    const weight = docname.startsWith("how-to/migrate-") ? 1.9 : 2;
    return weight * score * (1 + wanted.filter((word) => title.toLowerCase().includes(word)).length);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
