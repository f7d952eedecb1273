// Makes one script of the libraries that the pages draw with, with their licences in front, as they ask for.
// The versions are locked, so it is the same script byte for byte wherever it is made: `make assets`.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "..", "tracemap", "reports", "assets", "vendor", "charts.js");

const made = await build({
  absWorkingDir: here,
  entryPoints: ["charts.js"],
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  format: "iife",
  globalName: "charts",
  charset: "ascii", // whatever page it stands in
  target: "es2022",
  legalComments: "none", // all licences stand in front
});

function licences(inputs) {
  const packages = new Set(Object.keys(inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]).filter(Boolean));
  return [...packages].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return name + " " + version + "\n\n" + readFileSync(join(folder, "LICENSE"), "utf8").trim();
  });
}

// The same text stands once, with all that it is of above it.
function grouped(texts) {
  const byTerms = new Map();
  for (const text of texts) {
    const [name, ...terms] = text.split("\n\n");
    const key = terms.join("\n\n");
    byTerms.set(key, [...(byTerms.get(key) ?? []), name]);
  }
  return [...byTerms].map(([terms, names]) => names.join(", ") + "\n\n" + terms).join("\n\n");
}

const front = "/*!\n" + grouped(licences(made.metafile.inputs)).replaceAll("*/", "* /") + "\n*/\n";
writeFileSync(target, front + made.outputFiles[0].text);
