// How a peer behaves on a machine that somebody sits before: whether it may work now, by the owner's rules
// and by what was read of the machine (peer/desktop). Pure: readings and time are handed in.
//
// A reason pauses at once. Work goes on when there has been none for `settle`, so that a lid, a plug or a
// game that is started again does not have the work handed over each time. After a sleep it goes on at once.
//
// Who makes a rule wants it kept: where what it is about cannot be read, the peer does not work, and says so.
// A machine without a battery is one that runs on mains.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace weft::peer {

struct MannersRules {
  bool on_battery = true;                // works on battery, too
  std::optional<Duration> idle{};        // works once nobody has touched the machine for so long
  bool pause_for_games = false;          // while GameMode is asked for
  std::vector<std::string> pause_for{};  // while a program of one of these names runs
  std::optional<double> celsius_max{};
  Duration settle = std::chrono::seconds(10);
};

struct MannersReadings {
  struct Heat {
    double celsius = 0;
    std::string where;  // "coretemp"
  };
  bool on_battery = false;
  bool game = false;
  std::string program{};           // the first of those to pause for that runs; empty: none
  std::optional<Duration> idle{};  // for how long nobody has touched the machine; zero: somebody does
  std::optional<Heat> hottest{};   // of the processor and, where one works, the GPU
  bool about_to_sleep = false;     // the machine waits for a moment before it does
};

class Manners {
 public:
  // How much cooler than its limit the machine has to be before work goes on.
  static constexpr double kCooler = 5;

  explicit Manners(MannersRules rules) : rules_(std::move(rules)) {}

  void look(const MannersReadings& readings, Instant now);

  bool may_work() const { return !paused_; }
  // Why not: "on battery", "steam runs", two of them with "; " in between. The last of them while it settles.
  const std::string& reason() const { return reason_; }
  // When work goes on if nothing else comes; nothing: a reason holds still.
  std::optional<Instant> until() const;

 private:
  std::vector<std::string> reasons(const MannersReadings& readings) const;
  std::optional<std::string> of_heat(const MannersReadings& readings) const;

  MannersRules rules_;
  bool paused_ = false, too_hot_ = false, only_sleep_ = false;
  std::string reason_;
  std::optional<Instant> calm_since_;
};

}  // namespace weft::peer
