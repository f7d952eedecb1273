// What the pages' script draws with: d3's parts under their own names, nothing of ours.
export { axisBottom, axisLeft, axisTop } from "d3-axis";
export { hierarchy, partition } from "d3-hierarchy";
export { scaleLinear, scaleLog } from "d3-scale";
export { select } from "d3-selection";
export { zoom, zoomIdentity } from "d3-zoom";
