// What the services of a desktop say of its owner: logind whether somebody is at the machine and whether it
// is about to sleep, GameMode whether a game runs. They come and go: each is looked for again. For one
// thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/units.h"
#include "peer/desktop/bus.h"

namespace weft::peer {

class DesktopServices {
 public:
  using Open = std::function<std::unique_ptr<Bus>(Bus::Kind)>;
  explicit DesktopServices(Open open = [](Bus::Kind kind) { return Bus::open(kind); });
  ~DesktopServices();
  DesktopServices(const DesktopServices&) = delete;
  DesktopServices& operator=(const DesktopServices&) = delete;

  // For how long logind has called the machine idle; zero: it is in use. `now`: CLOCK_MONOTONIC.
  std::optional<Duration> idle(Duration now);
  bool game_runs();

  // Whether the machine is about to sleep. While it is not, logind is asked to wait for a moment before it
  // does, until let_it_sleep().
  bool about_to_sleep();
  void let_it_sleep();

 private:
  Bus* bus(Bus::Kind kind);

  struct Place {
    std::unique_ptr<Bus> bus;
    int skip = 0;  // so often it is not looked for again
  };
  const Open open_;
  Place system_, user_;
  std::optional<int> delay_;  // what keeps the machine awake for a moment
  bool asked_ = false;
};

}  // namespace weft::peer
