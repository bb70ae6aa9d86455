// What a simulated peer computes: its runner, tasks one after the other, and hashes of what they made.
#pragma once

#include <memory>
#include <vector>

#include "sim/peer_shell.h"

namespace weft::sim {

class PeerTasks {
 public:
  explicit PeerTasks(PeerShell& shell) : shell_(shell) {}

  void begin() { device_.begin(shell_.world.now()); }  // with the process
  void hang(Duration duration) { device_.hang(shell_.world.now(), duration); }
  bool hangs() const { return device_.hangs(shell_.world.now()); }

  void make_runner(const peer::MakeRunner& effect);
  void load_runner(const peer::LoadRunner& effect);
  void run(const peer::RunTask& effect);
  void ask_device();

 private:
  bool are_here(const proto::AssignStage& assignment) const;
  void finish(const peer::RunTask& effect, const std::shared_ptr<HashRunner>& runner,
              const HashRunner::Inputs& inputs, Duration busy);
  void send_agreed(const peer::Task& task, std::vector<HashAgreement::Sent> sent);
  void hash(uint64_t generation, const peer::Task& task, std::vector<HashRunner::Named> named,
            const std::shared_ptr<HashRunner>& runner);

  PeerShell& shell_;
  SimDevice device_;
  uint64_t loaded_ = 0;  // generation of the last follower that was
};

}  // namespace weft::sim
