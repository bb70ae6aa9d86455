// A process of the simulation: how often it has lived, and what waits until it is thawed.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace weft::sim {

class Process {
 public:
  // Runs what it is given: now, or when the process is thawed; not after the life in which the guard was
  // made.
  using Guard = std::function<void(std::function<void()>)>;

  uint64_t life() const { return life_; }
  bool frozen() const { return frozen_; }

  void begin() { ++life_; }
  // What waits is lost.
  void end() {
    ++life_;
    frozen_ = false;
    backlog_.clear();
  }
  void freeze() { frozen_ = true; }
  // What waits is done, in order; none of it that belongs to a life which ends meanwhile.
  void thaw() {
    frozen_ = false;
    for (auto& action : std::exchange(backlog_, {})) action();
  }

  void run(std::function<void()> action) {
    if (!frozen_) return action();
    backlog_.push_back([this, life = life_, action = std::move(action)] {
      if (life == life_) action();
    });
  }
  Guard guard() {
    return [this, life = life_](std::function<void()> action) {
      if (life == life_) run(std::move(action));
    };
  }

 private:
  uint64_t life_ = 0;
  bool frozen_ = false;
  std::vector<std::function<void()>> backlog_;
};

}  // namespace weft::sim
