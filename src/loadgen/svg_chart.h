// Charts as inline SVG text, with classes that the page's style colours for light and dark. Pure
// functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace holdfast::loadgen {

struct Chart {
  std::string title;
  std::string x_unit, y_unit;
  std::vector<std::pair<double, double>> points;  // x rises
  bool bars = false;                              // else a filled line
  bool logarithmic_x = false;                     // x > 0 then
  // Shaded from x to x, with a label: reloads.
  struct Band {
    double from, to;
    std::string label;
  };
  std::vector<Band> bands = {};
};

// An svg element; a chart without points says so.
std::string draw_chart(const Chart& chart);

// At most about six round numbers that span [0 or least, most].
std::vector<double> round_ticks(double least, double most);

// `text` with &, <, >, " and ' escaped.
std::string escape_html(const std::string& text);

}  // namespace holdfast::loadgen
