#include "base/metrics.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace weft {

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name(std::string_view name, bool may_have_colon) {
  const auto fits = [&](char c) { return is_letter(c) || is_digit(c) || (may_have_colon && c == ':'); };
  return !name.empty() && !is_digit(name.front()) && std::ranges::all_of(name, fits);
}

// Not a NaN, which would belong to no bucket and spoil the sum.
void observe_one(Histogram& histogram, double value) {
  if (value != value) return;
  const auto bucket = std::ranges::lower_bound(histogram.bounds, value) - histogram.bounds.begin();
  ++histogram.counts[static_cast<size_t>(bucket)];
  histogram.sum += value;
}

void add_all(Histogram& to, const Histogram& from) {
  WEFT_CHECK_MSG(to.bounds == from.bounds, "histograms with other bounds cannot be added");
  for (size_t i = 0; i < to.counts.size(); ++i) to.counts[i] += from.counts[i];
  to.sum += from.sum;
}

Metrics::Sample& sample_of(Metrics::Family& family, const Labels& labels) {
  const auto [at, is_new] = family.samples.try_emplace(labels);
  if (is_new) {
    for (const auto& [name, value] : labels) WEFT_CHECK(is_label_name(name));
    if (family.kind == MetricKind::Histogram)
      at->second.histogram = {.bounds = family.bounds,
                              .counts = std::vector<uint64_t>(family.bounds.size() + 1)};
  }
  return at->second;
}

}  // namespace

uint64_t Histogram::count() const { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }

Metrics::Family& Metrics::declare(std::string_view name, std::string_view help, MetricKind kind) {
  WEFT_CHECK(is_metric_name(name));
  WEFT_CHECK_MSG(name.ends_with("_total") == (kind == MetricKind::Counter), "counters end in _total");
  const auto [at, is_new] = families_.try_emplace(std::string(name));
  if (is_new) {
    at->second.kind = kind;
    at->second.help = help;
  }
  WEFT_CHECK_MSG(at->second.kind == kind, "one name, two kinds");
  return at->second;
}

void Metrics::declare_counter(std::string_view name, std::string_view help) {
  declare(name, help, MetricKind::Counter);
}
void Metrics::declare_gauge(std::string_view name, std::string_view help) {
  declare(name, help, MetricKind::Gauge);
}
void Metrics::declare_histogram(std::string_view name, std::string_view help,
                                std::span<const double> bounds) {
  WEFT_CHECK(std::ranges::adjacent_find(bounds, std::greater_equal<>()) == bounds.end());
  Family& family = declare(name, help, MetricKind::Histogram);
  if (family.bounds.empty()) family.bounds.assign(bounds.begin(), bounds.end());
  WEFT_CHECK_MSG(std::ranges::equal(family.bounds, bounds), "one histogram, two lists of bounds");
}

Metrics::Family& Metrics::family(std::string_view name, MetricKind kind) {
  const auto at = families_.find(name);
  WEFT_CHECK_MSG(at != families_.end() && at->second.kind == kind, "a family that is not declared so");
  return at->second;
}

void Metrics::add(std::string_view name, double amount, const Labels& labels) {
  WEFT_CHECK(amount >= 0);
  sample_of(family(name, MetricKind::Counter), labels).value += amount;
}
void Metrics::set(std::string_view name, double value, const Labels& labels) {
  sample_of(family(name, MetricKind::Gauge), labels).value = value;
}
void Metrics::observe(std::string_view name, double value, const Labels& labels) {
  observe_one(sample_of(family(name, MetricKind::Histogram), labels).histogram, value);
}
void Metrics::observe(std::string_view name, const Histogram& histogram, const Labels& labels) {
  add_all(sample_of(family(name, MetricKind::Histogram), labels).histogram, histogram);
}

void Metrics::merge(const Metrics& other) {
  for (const auto& [name, theirs] : other.families_) {
    Family& ours = declare(name, theirs.help, theirs.kind);
    if (ours.bounds.empty()) ours.bounds = theirs.bounds;
    WEFT_CHECK_MSG(ours.bounds == theirs.bounds, "one histogram, two lists of bounds");
    for (const auto& [labels, sample] : theirs.samples) {
      Sample& sum = sample_of(ours, labels);
      sum.value += sample.value;
      if (ours.kind == MetricKind::Histogram) add_all(sum.histogram, sample.histogram);
    }
  }
}

double Metrics::value(std::string_view name, const Labels& labels) const {
  const auto family = families_.find(name);
  if (family == families_.end()) return 0;
  const auto sample = family->second.samples.find(labels);
  return sample == family->second.samples.end() ? 0 : sample->second.value;
}

bool is_metric_name(std::string_view name) { return is_name(name, /*may_have_colon=*/true); }
bool is_label_name(std::string_view name) {
  return is_name(name, /*may_have_colon=*/false) && name != "le" && !name.starts_with("__");
}

std::span<const double> seconds_bounds() {
  static constexpr double kBounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                       0.5,   1,     2,     5,    10,   20,   60};
  return kBounds;
}

}  // namespace weft
