// A broker's core with peers that keep the protocol, in one process: every message lies in a queue, and which
// queue is served next is drawn at random. Peers can be lost and come back, the broker can be restarted. A
// stage's state is a number that its steps are counted in; what peers load must be the state that the plan
// names, and every blob must be somewhere.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "broker/broker.h"
#include "tests/support/keys.h"
#include "tests/support/memory_store.h"

namespace weft::test {

// Records and effects as text: equal exactly when they are.
std::string describe(const broker::Effects& effects);

struct ClusterOptions {
  uint32_t stages = 2;
  uint64_t steps = 12;
  double clip_norm = 0;
  std::set<uint64_t> skips{};  // steps whose first stage has a gradient that is not finite; none: it stops
  std::optional<uint64_t> checkpoint_steps = 5;
  uint64_t evaluate_every = 0;
  uint32_t forward_microbatches = 0;
  int64_t stage_bytes = 0;  // of its state
  Duration step_time = std::chrono::milliseconds(100);
  uint32_t submitted_stages = 2;  // as the job says; 0: auto
  broker::DriftOptions drift{.look_after = {}};
  bool reachable = true;  // peers by each other
  uint32_t minor = proto::kProtocolMinor;
  bool compresses = false;  // as the planner chose, too much until its links become gentler
  bool lies = false;        // whatever its links are, a stage says that they are too much
  // What the planner says of a run that goes on.
  std::function<Result<broker::Reconsidered::Other>(const broker::Reconsider&)> reconsider{};
};

// The stage that a peer runs.
struct FakeStage {
  std::shared_ptr<const proto::AssignStage> assignment;
  uint64_t last_sequence = 0, completed = 0;
  uint64_t forgotten = 0;  // copies of steps before it
  std::deque<proto::Command> commands;
  std::map<uint64_t, proto::GradientNorm> norms;
  bool squares_sent = false;
  struct Kept {
    uint64_t sequence = 0, step = 0;  // step: of a StepReport
    proto::Message message;
    bool transient = false;
  };
  std::vector<Kept> reports;
  bool loaded = false, failed = false;
};

struct FakePeer {
  uint8_t number = 0;
  uint64_t instance = 1;
  bool alive = false, draining = false, disk_full = false, left = false;
  bool fetches = true;                             // from other peers
  bool claims = false;                             // it says that it stands by, and has nothing
  uint64_t wrong_from = ~uint64_t{0};              // its gradients are not finite from that step on
  std::optional<broker::ConnectionId> connection;  // admitted or not
  bool admitted = false;
  std::optional<FakeStage> stage;
  bool heard = false;  // by a broker that knows the stage
  std::set<Digest> held;
  std::map<uint64_t, int> done;  // how often it did each step of its stage
};

class Cluster {
 public:
  Cluster(ClusterOptions options, uint64_t seed);

  void join(uint8_t peer);
  void submit();
  void lose(uint8_t peer);         // kill -9
  void lose_device(uint8_t peer);  // it says so, and goes
  void drain(uint8_t peer);
  void stop_job();
  void crash_broker();  // and start it again
  // Delivers one message, or lets some time pass; false when nothing but waiting is left for a minute.
  void turn();
  // Until the job has ended. False: it did not within a great many turns.
  bool play(int turns = 200000);
  // One turn of time: `duration`, then a tick.
  void wait(Duration duration);

  broker::Broker& core() { return *broker_; }
  proto::JobState state() const;
  uint64_t step() const { return store_.state().jobs.at(1).committed_step; }
  std::vector<proto::JobEvent> events();
  std::vector<std::string> notices();
  FakePeer& peer(uint8_t n) { return peers_.at(n); }
  // The peer that has the stage now; 0: nobody.
  uint8_t peer_of_stage(uint32_t stage) const;
  MemoryStore& store() { return store_; }
  // What must hold of the event log at any time.
  void check_log();
  void check_script() const;
  // The crash happens at the n-th append from now: before it is durable, or after, when nobody has heard of
  // it.
  void crash_at_append(int n, bool durable) { crash_at_ = n, crash_durable_ = durable; }
  bool crashed() const { return crashes_ != 0; }
  broker::BrokerOptions broker_options() const;
  void forget_transient() { transient_.clear(); }
  bool broker_has(const Digest& blob) const { return durable_.contains(blob) || transient_.contains(blob); }
  Digest digest(uint32_t stage, uint64_t step) const;
  uint64_t skipped_up_to(uint64_t step) const {
    return static_cast<uint64_t>(std::distance(options_.skips.begin(), options_.skips.upper_bound(step)));
  }

  std::set<Digest> kept;  // as the broker last said, of the blobs that need not survive it
  bool tracing = false;
  std::vector<broker::Event> trace;  // of the broker's last life
  std::vector<Duration> trace_times;
  std::string described;                                             // what came of it
  std::map<proto::JobNumber, std::vector<proto::Command>> commands;  // issued, of the last plan

 private:
  void feed(const broker::Event& event);
  void carry_out(const broker::Effects& effects);
  void plan(const broker::StartPlanning& request);
  void receive(FakePeer& peer, const proto::Message& message);
  void load(FakePeer& peer);
  void stand_by(FakePeer& peer, const proto::StandBy& list);
  // From the broker, or the source that is named; whether it is there now.
  bool fetch(FakePeer& peer, const std::vector<proto::TensorReference>& tensors, size_t index,
             const std::vector<proto::BlobSource>& sources);
  void work(FakePeer& peer);
  void tell(FakePeer& peer, proto::Message message);
  void report(FakePeer& peer, uint64_t sequence, uint64_t step, proto::Message message,
              bool transient = false);
  void snapshot(FakePeer& peer, const proto::Command& command);
  void step_once(FakePeer& peer, bool& waits);
  void connect(FakePeer& peer);
  void disconnect(FakePeer& peer, const std::string& why);

  ClusterOptions options_;
  Rng rng_;
  MemoryStore store_;
  std::unique_ptr<broker::Broker> broker_;
  std::map<uint8_t, FakePeer> peers_;
  std::map<broker::ConnectionId, uint8_t> peer_of_;
  broker::ConnectionId next_connection_ = 1;
  std::map<std::string, std::deque<std::function<void()>>> queues_;
  std::set<Digest> durable_, transient_;
  Instant now_ = Instant{} + std::chrono::hours(1);
  int crash_at_ = 0, crashes_ = 0;
  bool crash_durable_ = false, down_ = false;
  broker::ConnectionId client_ = 0;
};

}  // namespace weft::test
