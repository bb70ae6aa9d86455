#include "web/prometheus.h"

#include <gtest/gtest.h>

#include <limits>

namespace weft::web {
namespace {

TEST(Prometheus, CountersAndGauges) {
  Metrics metrics;
  metrics.declare_counter("weft_tokens_total", "Tokens that were sent.");
  metrics.declare_gauge("weft_cache_bytes", "Bytes in caches.");
  metrics.declare_gauge("weft_idle", "Nothing yet.");
  metrics.add("weft_tokens_total", 3);
  metrics.add("weft_tokens_total", 0.5, {{"model", "gpt"}, {"kind", "chat"}});
  metrics.set("weft_cache_bytes", 1e15);
  EXPECT_EQ(render_prometheus(metrics),
            "# HELP weft_cache_bytes Bytes in caches.\n"
            "# TYPE weft_cache_bytes gauge\n"
            "weft_cache_bytes 1e+15\n"
            "# HELP weft_idle Nothing yet.\n"
            "# TYPE weft_idle gauge\n"
            "# HELP weft_tokens_total Tokens that were sent.\n"
            "# TYPE weft_tokens_total counter\n"
            "weft_tokens_total 3\n"
            "weft_tokens_total{kind=\"chat\",model=\"gpt\"} 0.5\n");
}

TEST(Prometheus, BucketsAreCumulative) {
  Metrics metrics;
  constexpr double kBounds[] = {0.1, 1};
  metrics.declare_histogram("gap_seconds", "Between tokens.", kBounds);
  for (const double value : {0.05, 0.5, 0.75, 5.0}) metrics.observe("gap_seconds", value, {{"stage", "1"}});
  EXPECT_EQ(render_prometheus(metrics),
            "# HELP gap_seconds Between tokens.\n"
            "# TYPE gap_seconds histogram\n"
            "gap_seconds_bucket{stage=\"1\",le=\"0.1\"} 1\n"
            "gap_seconds_bucket{stage=\"1\",le=\"1\"} 3\n"
            "gap_seconds_bucket{stage=\"1\",le=\"+Inf\"} 4\n"
            "gap_seconds_sum{stage=\"1\"} 6.3\n"
            "gap_seconds_count{stage=\"1\"} 4\n");
}

TEST(Prometheus, NamesOfModelsCannotBreakALine) {
  Metrics metrics;
  metrics.declare_gauge("up", "A \"help\"\nin two\\lines");
  metrics.set("up", 1, {{"model", "a\"} 1\nevil 2\\"}});
  EXPECT_EQ(render_prometheus(metrics),
            "# HELP up A \"help\"\\nin two\\\\lines\n"
            "# TYPE up gauge\n"
            "up{model=\"a\\\"} 1\\nevil 2\\\\\"} 1\n");
}

TEST(Prometheus, NumbersThatAreNone) {
  Metrics metrics;
  metrics.declare_gauge("x", "");
  metrics.set("x", std::numeric_limits<double>::infinity(), {{"of", "a"}});
  metrics.set("x", -std::numeric_limits<double>::infinity(), {{"of", "b"}});
  metrics.set("x", std::numeric_limits<double>::quiet_NaN(), {{"of", "c"}});
  const std::string text = render_prometheus(metrics);
  for (const char* line : {"x{of=\"a\"} +Inf\n", "x{of=\"b\"} -Inf\n", "x{of=\"c\"} NaN\n"})
    EXPECT_NE(text.find(line), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::web
