#include "web/prometheus.h"

#include <charconv>
#include <cmath>

namespace weft::web {

namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return {text, end};
}

// Within a help text quotes stay as they are.
std::string escaped(std::string_view text, bool is_label) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && is_label)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

// "{a="1",le="5"}", or nothing where there are none.
std::string braces(const Labels& labels, std::string_view bound = {}) {
  std::string inside;
  const auto put = [&](std::string_view name, std::string_view value) {
    if (!inside.empty()) inside += ',';
    inside.append(name).append("=\"").append(escaped(value, /*is_label=*/true)).append("\"");
  };
  for (const auto& [name, value] : labels) put(name, value);
  if (!bound.empty()) put("le", bound);
  return inside.empty() ? inside : "{" + inside + "}";
}

// Buckets are cumulative here: of at most so much.
void put_histogram(std::string& out, const std::string& name, const Labels& labels,
                   const Histogram& histogram) {
  uint64_t count = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];
    const std::string bound = i < histogram.bounds.size() ? number(histogram.bounds[i]) : "+Inf";
    out += name + "_bucket" + braces(labels, bound) + " " + std::to_string(count) + "\n";
  }
  out += name + "_sum" + braces(labels) + " " + number(histogram.sum) + "\n";
  out += name + "_count" + braces(labels) + " " + std::to_string(count) + "\n";
}

std::string_view type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::Counter:
      return "counter";
    case MetricKind::Gauge:
      return "gauge";
    case MetricKind::Histogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace

std::string render_prometheus(const Metrics& metrics) {
  std::string out;
  for (const auto& [name, family] : metrics.families()) {
    out += "# HELP " + name + " " + escaped(family.help, /*is_label=*/false) + "\n";
    out.append("# TYPE ").append(name).append(" ").append(type_of(family.kind)).append("\n");
    for (const auto& [labels, sample] : family.samples)
      if (family.kind == MetricKind::Histogram)
        put_histogram(out, name, labels, sample.histogram);
      else
        out += name + braces(labels) + " " + number(sample.value) + "\n";
  }
  return out;
}

}  // namespace weft::web
