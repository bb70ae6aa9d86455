#include "base/metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"

namespace weft {
namespace {

constexpr double kBounds[] = {1, 10};

Metrics sample_metrics() {
  Metrics metrics;
  metrics.declare_counter("tokens_total", "Tokens.");
  metrics.declare_gauge("cache_bytes", "Bytes.");
  metrics.declare_histogram("gap_seconds", "Seconds.", kBounds);
  return metrics;
}

TEST(Metrics, CountersAddByLabels) {
  Metrics metrics = sample_metrics();
  metrics.add("tokens_total");
  metrics.add("tokens_total", 2, {{"model", "a"}});
  metrics.add("tokens_total", 3, {{"model", "a"}});
  EXPECT_EQ(metrics.value("tokens_total"), 1);
  EXPECT_EQ(metrics.value("tokens_total", {{"model", "a"}}), 5);
  EXPECT_EQ(metrics.value("tokens_total", {{"model", "b"}}), 0);
}

TEST(Metrics, AGaugeIsWhatWasSetLast) {
  Metrics metrics = sample_metrics();
  metrics.set("cache_bytes", 7);
  metrics.set("cache_bytes", 5);
  EXPECT_EQ(metrics.value("cache_bytes"), 5);
}

TEST(Metrics, ABoundBelongsToItsBucket) {
  Metrics metrics = sample_metrics();
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0, std::numeric_limits<double>::quiet_NaN()})
    metrics.observe("gap_seconds", value);
  const Histogram& histogram = metrics.families().at("gap_seconds").samples.at({}).histogram;
  EXPECT_EQ(histogram.counts, (std::vector<uint64_t>{2, 2, 1}));
  EXPECT_EQ(histogram.count(), 5u);
  EXPECT_EQ(histogram.sum, 24.0);
}

// However observations are dealt out, the merged parts say what one would have said.
TEST(Metrics, MergedPartsAreTheWhole) {
  Metrics whole = sample_metrics(), left = sample_metrics(), right;
  right.declare_histogram("gap_seconds", "Seconds.", kBounds);
  right.declare_counter("tokens_total", "Tokens.");
  Rng rng(36, 0);
  for (int i = 0; i < 1000; ++i) {
    const auto value = static_cast<double>(rng.below(20));
    const Labels labels = {{"stage", std::to_string(rng.below(3))}};
    Metrics& part = rng.below(2) == 0 ? left : right;
    for (Metrics* metrics : {&whole, &part}) {
      metrics->observe("gap_seconds", value, labels);
      metrics->add("tokens_total", value, labels);
    }
  }
  left.merge(right);
  EXPECT_EQ(left, whole);
}

TEST(Metrics, MergingBringsFamiliesThatWereNotThere) {
  Metrics metrics, other = sample_metrics();
  other.add("tokens_total", 4);
  metrics.merge(other);
  EXPECT_EQ(metrics, other);
}

TEST(MetricsDeathTest, MistakesOfOursStopTheProcess) {
  Metrics metrics = sample_metrics();
  EXPECT_DEATH(metrics.add("tokens"), "not declared");
  EXPECT_DEATH(metrics.set("tokens_total", 1), "not declared");
  EXPECT_DEATH(metrics.declare_counter("tokens", ""), "_total");
  EXPECT_DEATH(metrics.declare_gauge("bytes_total", ""), "_total");
  EXPECT_DEATH(metrics.declare_gauge("gap_seconds", ""), "two kinds");
  EXPECT_DEATH(metrics.add("tokens_total", -1), "amount");
  EXPECT_DEATH(metrics.add("tokens_total", 1, {{"le", "1"}}), "is_label_name");
}

TEST(Metrics, Names) {
  for (const char* name : {"a", "_a", "a:b", "A9"}) EXPECT_TRUE(is_metric_name(name)) << name;
  for (const char* name : {"", "9a", "a-b", "a b", "ä"}) EXPECT_FALSE(is_metric_name(name)) << name;
  for (const char* name : {"a:b", "le", "__a", ""}) EXPECT_FALSE(is_label_name(name)) << name;
}

}  // namespace
}  // namespace weft
