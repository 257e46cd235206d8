#include "loadgen/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace holdfast::loadgen {
namespace {

constexpr double kWidth = 860, kHeight = 240;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 34;

// Data to pixels.
struct Scale {
  double x_least, x_most, y_most;
  bool logarithmic;
  double x(double value) const {
    double share = 0;
    if (logarithmic) {
      share = std::log(value / x_least) / std::log(x_most / x_least);
    } else {
      share = (value - x_least) / (x_most - x_least);
    }
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - value / y_most * (kHeight - kTop - kBottom);
  }
};

Scale scale_of(const Chart& chart) {
  Scale out{chart.points.front().first, chart.points.back().first, 0, chart.logarithmic_x};
  for (const auto& [x, y] : chart.points) out.y_most = std::max(out.y_most, y);
  if (!chart.logarithmic_x) out.x_least = std::min(out.x_least, 0.0);
  if (out.x_most <= out.x_least) out.x_most = out.x_least + 1;
  if (out.y_most <= 0) out.y_most = 1;
  out.y_most *= 1.05;
  return out;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::vector<double> x_ticks(const Scale& scale) {
  if (!scale.logarithmic) return round_ticks(scale.x_least, scale.x_most);
  std::vector<double> out;
  double decade = std::pow(10, std::floor(std::log10(scale.x_least)));
  for (; decade <= scale.x_most; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double tick = decade * step;
      if (tick >= scale.x_least && tick <= scale.x_most) out.push_back(tick);
    }
  }
  return out;
}

std::string axes(const Chart& chart, const Scale& scale) {
  std::string out;
  for (const double tick : round_ticks(0, scale.y_most)) {
    const double y = scale.y(tick);
    out += fmt::format(R"(<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft,
                       kWidth - kRight, y, y);
    out += fmt::format(R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>)",
                       kLeft - 8, y + 4, short_number(tick));
  }
  for (const double tick : x_ticks(scale)) {
    out += fmt::format(R"(<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)",
                       scale.x(tick), kHeight - kBottom + 16, short_number(tick));
  }
  out += fmt::format(R"(<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>)",
                     kWidth - kRight, kHeight - 3, chart.x_unit);
  return out;
}

// The label of every band would run together: only where there is room.
std::string bands(const Chart& chart, const Scale& scale) {
  std::string out;
  double free_from = 0;
  for (const Chart::Band& band : chart.bands) {
    const double from = scale.x(std::clamp(band.from, scale.x_least, scale.x_most));
    const double to = scale.x(std::clamp(band.to, scale.x_least, scale.x_most));
    out += fmt::format(
        R"(<rect class="band" x="{:.1f}" width="{:.1f}" y="{}" height="{}">)"
        R"(<title>{}</title></rect>)",
        from, std::max(to - from, 1.5), kTop, kHeight - kTop - kBottom, escape_html(band.label));
    if (from < free_from) continue;
    out += fmt::format(R"(<text class="mark" x="{:.1f}" y="{}">{}</text>)", from, kTop - 5,
                       escape_html(band.label));
    free_from = from + 8.0 * static_cast<double>(band.label.size()) + 6;
  }
  return out;
}

std::string line_shape(const Chart& chart, const Scale& scale) {
  std::string line;
  for (const auto& [x, y] : chart.points) {
    line += fmt::format("{:.1f},{:.1f} ", scale.x(x), scale.y(y));
  }
  const double ground = scale.y(0);
  return fmt::format(
      R"(<polygon class="area" points="{:.1f},{:.1f} {}{:.1f},{:.1f}"/>)"
      R"(<polyline class="line" points="{}"/>)",
      scale.x(chart.points.front().first), ground, line, scale.x(chart.points.back().first), ground,
      line);
}

std::string bar_shapes(const Chart& chart, const Scale& scale) {
  std::string out;
  for (std::size_t i = 0; i + 1 < chart.points.size(); ++i) {
    const auto& [x, y] = chart.points[i];
    if (y <= 0) continue;
    const double left = scale.x(x), right = scale.x(chart.points[i + 1].first);
    out += fmt::format(
        R"(<rect class="bar" x="{:.1f}" width="{:.1f}" y="{:.1f}" height="{:.1f}">)"
        R"(<title>from {:.4g} {}: {}</title></rect>)",
        left + 0.5, std::max(right - left - 1, 0.5), scale.y(y), scale.y(0) - scale.y(y), x,
        chart.x_unit, y);
  }
  return out;
}

}  // namespace

std::vector<double> round_ticks(double least, double most) {
  std::vector<double> out;
  const double width = most - least;
  if (!(width > 0) || !std::isfinite(width)) return out;
  const double decade = std::pow(10, std::floor(std::log10(width / 5)));
  double step = decade;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = decade * factor;
    if (width / step <= 6) break;
  }
  for (double tick = std::ceil(least / step); tick * step <= most; ++tick) {
    out.push_back(tick * step);
  }
  return out;
}

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string draw_chart(const Chart& chart) {
  std::string out = fmt::format(
      R"(<figure><figcaption>{} <span>{}</span></figcaption>)", escape_html(chart.title),
      escape_html(chart.y_unit));
  if (chart.points.size() < 2) return out + "<p class=\"none\">nothing to show</p></figure>\n";
  const Scale scale = scale_of(chart);
  out += fmt::format(R"(<svg viewBox="0 0 {} {}" role="img">)", kWidth, kHeight);
  out += bands(chart, scale) + axes(chart, scale);
  out += chart.bars ? bar_shapes(chart, scale) : line_shape(chart, scale);
  return out + "</svg></figure>\n";
}

}  // namespace holdfast::loadgen
