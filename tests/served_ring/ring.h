// A small model, peers that serve it in a ring, and texts that are drawn: by them, and by one machine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "dag/incremental/incremental.h"
#include "peer/service/peer_service.h"
#include "serve/engine.h"
#include "tests/incremental/net.h"
#include "tests/links/wire.h"
#include "tests/served_ring/fake_broker.h"
#include "tests/support/sanitized.h"

namespace weft::served {

// Only a hang reaches it.
constexpr Duration kPatience = std::chrono::seconds(test::kIsSanitized ? 1200 : 120);

struct ServedModel {
  // `overflows`: a token of which the model makes NaN.
  explicit ServedModel(int64_t layers = 3, int64_t vocabulary = 29, std::optional<int64_t> overflows = {});
  // Of a ring of so many, with links that have yet to be filled in. The entry has a part at each end.
  proto::AssignStage assignment(FakeBroker& broker, uint32_t seat, uint32_t stages) const;
  // What stage `seat` begins with; of the entry its second range.
  uint32_t first_part(uint32_t seat, uint32_t stages) const;

  plan::DraftKind draft = plan::DraftKind::None;  // of the entry; a decoder is the model itself
  incremental::testing::Model model;
  std::shared_ptr<const dag::Incremental> incremental;
};

// A peer in a thread of its own.
class PeerThread {
 public:
  explicit PeerThread(const FakeBroker& broker);
  ~PeerThread();
  PeerId id() const { return identity_->id(); }
  int taken_over() const { return taken_over_; }  // stages that it had had before

 private:
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  std::atomic<int> taken_over_ = 0;
  net::Loop loop_;
  std::thread thread_;
};

struct Text {
  std::vector<int64_t> tokens;
  std::optional<proto::ServeEnd> end;
  std::optional<Error> error;
  std::vector<double> log_probabilities;
  bool operator==(const Text& other) const {
    return tokens == other.tokens && end == other.end && log_probabilities == other.log_probabilities;
  }
};

std::vector<proto::ServeRequest> random_requests(Rng& rng, uint64_t count, uint64_t tokens_max = 40);
// Each as one machine draws it.
std::map<uint64_t, Text> texts_of_one_machine(const ServedModel& model,
                                              const std::vector<proto::ServeRequest>& requests);

// Broker and peers, and links that can be cut.
class Ring {
 public:
  Ring(const ServedModel& model, uint32_t stages);

  void assign(proto::PlanVersion version = 1);  // until all are ready
  void ask(const proto::ServeRequest& request);
  // All that have not ended, with what is known to have been drawn, as a broker does for a new plan.
  void ask_again();
  // The peer is gone, without a word; another one is there.
  void replace(uint32_t seat);
  // From the next plan on it makes NaN of everything, until it is replaced.
  void break_peer(uint32_t seat) { broken_ = seat; }
  const PeerThread& peer(uint32_t seat) const { return *peers_.at(seat); }
  void cancel(uint64_t request);
  // Until it holds; false: a stage has failed, or patience is at an end.
  bool wait(const std::function<bool()>& until);
  bool all_ended() const;
  uint64_t tokens() const;                             // of all texts
  void cut(uint32_t seat) { wires_.at(seat)->cut(); }  // all links that this one was dialled for
  int dialled(uint32_t seat) const { return wires_.at(seat)->accepted(); }

  net::Loop loop;
  FakeBroker broker{loop};
  std::map<uint64_t, Text> texts;
  std::vector<proto::StageFailed> failures;
  std::vector<proto::StageReady> ready;
  uint64_t resumed = 0, gaps = 0, guesses = 0, guesses_right = 0;

 private:
  void on_message(const PeerId& from, const proto::Message& message);
  void await(uint32_t seat);
  void on_progress(const proto::ServeProgress& progress);

  const ServedModel& model_;
  proto::PlanVersion version_ = 0;
  std::optional<uint32_t> broken_;
  std::map<uint64_t, proto::ServeRequest> asked_;
  std::vector<std::unique_ptr<PeerThread>> peers_;
  std::map<uint32_t, std::unique_ptr<peer::test::Wire>> wires_;
};

}  // namespace weft::served
