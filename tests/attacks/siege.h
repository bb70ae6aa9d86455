// A broker under attack, beside peers that do no wrong: what every attack is measured by.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/attacks/broker_process.h"
#include "tests/attacks/honest_peers.h"
#include "tests/attacks/peer_process.h"
#include "tests/support/scratch.h"

namespace weft::attacks {

// How long an attack lasts: two seconds, with WEFT_LONG=1 a minute.
Duration attack_time();

class Siege {
 public:
  static constexpr size_t kHonestPeers = 200, kOwners = 4;

  // `prepare` gets the folder of the broker's data before the broker starts.
  explicit Siege(const std::function<void(const std::filesystem::path& data)>& prepare = {},
                 std::vector<std::string> broker_arguments = {});
  BrokerProcess& broker() { return *broker_; }

  // Runs `attack` on a thread of its own until the flag it gets is set, in turns as short as it likes. Then:
  // no honest peer was lost and none waited for a second, protocol clients of this process and `weft join`
  // alike; the broker grew by 64 MiB at most and its log by 1, a newcomer joins, and the broker ends and
  // starts on the same folder.
  void withstands(const std::function<void(const std::atomic<bool>& is_over)>& attack);

 private:
  test::Scratch scratch_;
  std::unique_ptr<BrokerProcess> broker_;
  std::unique_ptr<HonestPeers> honest_;
  std::vector<std::unique_ptr<PeerProcess>> owners_;  // as people run them
};

}  // namespace weft::attacks
