// A Metrics as Prometheus' text format 0.0.4, as scrapers read it
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
#pragma once

#include <string>
#include <string_view>

#include "base/metrics.h"

namespace weft::web {

inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

// Families by name, samples by labels: equal metrics give equal bytes. A family without samples has its HELP
// and TYPE all the same. Numbers are the shortest that read back as the same double.
std::string render_prometheus(const Metrics& metrics);

}  // namespace weft::web
