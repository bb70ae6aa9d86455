// What a broker counts for whoever watches it (weft broker --metrics; docs/BROKER.md has the list). How many
// series there are follows from the jobs of now, never from those of the past: what a job alone had leaves
// with it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/metrics.h"
#include "proto/hello.h"

namespace weft::broker {

class Figures {
 public:
  static constexpr size_t kLinksMax = 4096;  // that are told apart; what goes over others counts as "other"

  Figures();
  void on_step(double seconds) { counted_.observe("weft_step_seconds", seconds); }
  void on_recovery() { counted_.add("weft_recoveries_total"); }
  // Of a job's link from one peer to another, by name.
  void on_sent(proto::JobNumber job, const std::string& from, const std::string& to, uint64_t bytes);
  void forget(proto::JobNumber job);  // it has ended

  Metrics metrics() const;

 private:
  struct Link {
    double bytes = 0;
    std::set<proto::JobNumber> jobs{};  // whose it is
  };
  std::map<std::pair<std::string, std::string>, Link> links_;  // from, to
  Metrics counted_;
};

}  // namespace weft::broker
