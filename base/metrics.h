// What a process counts, as a value. Whoever counts owns its Metrics and touches it on its own thread; a
// scrape merges copies of them. No registry stands behind it and no lock.
//
// A family has a name, a help text and a kind. Its samples are told apart by their labels. Names carry their
// unit, which is a base unit: seconds, bytes; a counter's name ends in `_total` (Prometheus' rules,
// https://prometheus.io/docs/practices/naming/). web/prometheus.h writes a Metrics as text.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Pairs of name and value, in the order of the names: equal labels are one sample.
using Labels = std::map<std::string, std::string>;

enum class MetricKind : uint8_t {
  Counter,    // only grows; merged by adding
  Gauge,      // as it is now; merged by adding: each part of a process has its share
  Histogram,  // merged by adding
};

// Observations by size. counts[i] are those of at most bounds[i] and above bounds[i - 1]; the last count is
// of those above every bound.
struct Histogram {
  std::vector<double> bounds{};    // rising
  std::vector<uint64_t> counts{};  // one more than bounds
  double sum = 0;

  uint64_t count() const;
  bool operator==(const Histogram&) const = default;
};

class Metrics {
 public:
  struct Sample {
    double value = 0;       // of a counter or a gauge
    Histogram histogram{};  // of a histogram
    bool operator==(const Sample&) const = default;
  };
  struct Family {
    MetricKind kind = MetricKind::Counter;
    std::string help{};
    std::vector<double> bounds{};  // of a histogram
    std::map<Labels, Sample> samples{};
    bool operator==(const Family&) const = default;
  };

  // Names a family. Doing so again changes nothing.
  // REQUIRES: a valid name, of one kind and with the same bounds each time; bounds that rise; a counter's
  // name ends in "_total", no other does.
  void declare_counter(std::string_view name, std::string_view help);
  void declare_gauge(std::string_view name, std::string_view help);
  void declare_histogram(std::string_view name, std::string_view help, std::span<const double> bounds);

  // REQUIRES: the family is declared, with that kind; valid names of labels; amount is not negative.
  void add(std::string_view name, double amount = 1, const Labels& labels = {});
  void set(std::string_view name, double value, const Labels& labels = {});
  void observe(std::string_view name, double value, const Labels& labels = {});
  void observe(std::string_view name, const Histogram& histogram, const Labels& labels = {});

  // Adds what another counted. REQUIRES: families of one name have one kind and the same bounds.
  void merge(const Metrics& other);

  const std::map<std::string, Family, std::less<>>& families() const { return families_; }
  // Zero where there is no such sample; for tests and for decisions.
  double value(std::string_view name, const Labels& labels = {}) const;
  bool operator==(const Metrics&) const = default;

 private:
  Family& declare(std::string_view name, std::string_view help, MetricKind kind);
  Family& family(std::string_view name, MetricKind kind);

  std::map<std::string, Family, std::less<>> families_;
};

// [a-zA-Z_:][a-zA-Z0-9_:]*; of a label without the colon, and neither "le" nor "__...", which are taken.
bool is_metric_name(std::string_view name);
bool is_label_name(std::string_view name);

// Bounds for times from a millisecond to a minute, by factors of about two.
std::span<const double> seconds_bounds();

}  // namespace weft
