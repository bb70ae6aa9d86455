// What peer/service does with sockets, threads and kernels, as plain lists: a Peer's effects lie here until
// the test answers them. Digests are made from names.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "peer/machine/peer.h"

namespace weft::test {

inline const Instant kStart = Instant{} + std::chrono::hours(1);

Digest digest_of(const std::string& name);
// A tensor of 64 bytes.
proto::TensorReference tensor_of(const std::string& initializer, const std::string& content);

struct StageSpec {
  proto::JobNumber run = 1;
  proto::PlanVersion plan_version = 1;
  uint64_t after_step = 0;
  double clip_norm = 0;
  bool reads_data = true;
  bool receives = false;  // edge 7 from stage 1
  bool evaluates = false, predicts = false;
  std::vector<std::string> contents{"a", "b"};  // of its tensors "w0", "w1", ...
};
// A training stage of one op: 2 microbatches of 4 samples a step, 100 steps; or a predicting one.
proto::AssignStage assignment(const StageSpec& spec = {});

struct Shell {
  explicit Shell(peer::PeerOptions options = {});

  void act(peer::PeerEffects effects);
  // To Joined.
  void join(std::optional<Duration> lease = {});
  void say(const proto::Message& message) { act(peer.on_message(now, message)); }
  void tick(Duration after = Duration::zero());
  void lose_broker();
  void reconnect();  // until it has said Hello
  void welcome();    // HelloAck
  // Answers fetches, the runner, links until nothing is asked; then StageReady was told.
  void load(const proto::AssignStage& assign);
  void answer_fetches(const Status& status = {});
  void answer_data();
  // Runs tasks and answers data until there is none; snapshots are hashed as "<name>@<step>", predictions as
  // "p<m>".
  void work();
  void finish_task(const peer::RunTask& run);
  // Grants offers and puts until there are none; the broker holds `stored`.
  void answer_uploads();
  uint64_t command(proto::CommandKind kind, uint64_t step, uint64_t committed = 0, uint64_t settled = 0,
                   uint64_t keep_from = 0, uint32_t microbatches = 0);

  template <typename M>
  std::vector<M> told_of() const {
    std::vector<M> found;
    for (const proto::Message& message : told)
      if (const auto* m = std::get_if<M>(&message)) found.push_back(*m);
    return found;
  }
  std::set<std::string> fetching() const;  // names of what is asked for

  peer::Peer peer;
  Instant now = kStart;
  std::vector<proto::Message> told;  // since the test cleared it
  uint32_t connects = 0, drops = 0, runners_dropped = 0, runners_loaded = 0, device_asked = 0;
  std::deque<peer::FetchBlob> fetches;
  std::deque<peer::FetchData> data;
  std::deque<peer::RunTask> tasks;
  std::vector<peer::PassRequest> requests;
  std::vector<uint64_t> parked;  // generations
  std::vector<peer::TakeRunner> taken;
  std::deque<peer::OfferBlobs> offers;
  std::deque<peer::UploadBlob> puts;
  std::vector<peer::MicrobatchKey> dropped_microbatches;
  std::optional<peer::MakeRunner> runner;
  std::optional<peer::OpenLinks> links;
  std::vector<dag::RowSpec> edges;  // that a runner which serves says it has
  std::vector<peer::Probe> probes;
  std::set<Digest> memory;    // bytes that the shell holds
  std::set<Digest> stored;    // at the broker
  bool device_hangs = false;  // else it answers when asked
  bool left = false;
  Status why;
  uint64_t sequence = 0;
  proto::JobNumber run = 0;
  proto::PlanVersion plan_version = 0;
};

}  // namespace weft::test
