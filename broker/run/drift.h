// Whether a run that goes on is better planned anew, because links, devices or the pool are not any more what
// its plan took them for. A look costs some planning, a move costs seconds without steps: looks keep a
// distance, which is longer after a move until it has turned out to pay, only a plan that is clearly faster
// and wins the move's cost several times is moved to, and a move that brought nothing makes the next look
// late. A run whose replicas come and go looks sooner at peers that came, and takes them for less. Pure: time
// is handed in.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"

namespace weft::broker {

struct DriftOptions {
  Duration look_after = std::chrono::seconds(30);  // a run began, or the last look; 0: never
  Duration look_after_max = std::chrono::hours(1);
  uint64_t steps_min = 8;  // committed since then: what a step takes is measured over them
  double gain_min = 1.25;  // times faster a step is predicted to be
  double pay_min = 3;      // times the cost that the steps that are left win
  Duration grow_after = std::chrono::seconds(5);  // instead of look_after, where more replicas could be had
  double growth_min = 1.03;                       // instead of gain_min, with more replicas
};

// What a plan rests on, as numbers that change with it.
struct Belief {
  uint64_t links = 0, devices = 0, pool = 0;
  bool operator==(const Belief&) const = default;
};

class Drift {
 public:
  explicit Drift(DriftOptions options = {}) : options_(options), look_after_(options.look_after) {}

  void planned(const Belief& belief) { belief_ = belief; }
  // A run of the plan goes on from here.
  void begin(Instant now, uint64_t committed);

  // Nothing has to be done before; then what steps took since is known. `may_grow`: peers are there for more
  // replicas.
  bool is_time(Instant now, uint64_t committed, bool may_grow = false);
  double step_seconds() const { return step_seconds_; }  // wall, over the last window
  // After a move, at the first look: what a step took before, if it takes no less now.
  std::optional<double> take_disappointment();
  // Whether anything that the plan rests on has changed since it was made or last looked at. take_news(): and
  // it was looked at.
  bool has_news(const Belief& belief) const { return belief_ != belief; }
  bool take_news(const Belief& belief);

  // Predicted under what is believed now: a step as the run is, and as it would be. `cost`: seconds.
  bool pays(Duration as_it_is, Duration as_planned, uint64_t steps_left, double cost,
            bool grows = false) const;
  void moves();

 private:
  DriftOptions options_;
  Duration look_after_;
  Belief belief_{};
  Instant since_{};
  uint64_t committed_ = 0;
  double step_seconds_ = 0;
  std::optional<double> before_{};  // the move
};

}  // namespace weft::broker
