#include "sim/simulation.h"

#include <algorithm>
#include <cstring>

#include "sim/agreement.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation() { world_.clear(); }
  SimulationResult run();

 private:
  uint64_t cast();  // returns how many jobs there are
  void begin(uint64_t jobs);
  void run_with_faults();
  void run_to_the_end();
  std::string what_is_open(const User& user) const;
  SimulationResult result_so_far() const;
  JobSpec draw_job(uint32_t index);
  void draw_replicas(JobSpec& job);
  void draw_exact(JobSpec& job);
  std::unique_ptr<PeerHost> make_peer(NodeId node, const PeerId& key, uint64_t seed);
  void draw_liars();
  PeerId key_of(NodeId node) const;
  bool is_scenario() const { return options_.drift || options_.slow; }
  bool all_done() const;
  void run_until(Instant end);
  bool all_run() const;  // and nobody is about to leave, or hangs
  void set_uplink(NodeId node, double bytes_per_second);
  void set_lines(double bytes_per_second);
  void change_lines();
  Duration bound() const;

  SimulationOptions options_;
  Draw draw_;
  World world_;
  std::vector<JobSpec> specs_;
  Duration latency_max_;
  Network network_;
  SimStore store_;
  SimBlobs blobs_;
  BrokerHost::Options broker_options_;
  Checkers checkers_;
  BrokerHost broker_;
  std::vector<std::unique_ptr<PeerHost>> peers_, twins_;
  std::vector<std::unique_ptr<User>> users_;
  std::unique_ptr<Faults> faults_;
  std::map<NodeId, std::shared_ptr<Liar>> liars_;
  NodeId slowed_ = 0;
};

// Of a drift scenario, bytes a second.
constexpr uint64_t kDriftPath = 16'000'000, kDriftLine = 2'500'000;
constexpr uint64_t kSlowLine = 1'000'000;
constexpr size_t kLiarsAmongReplicas = 2;
// Bytes a second for copies of a state, which take longer than a minute then: replicas keep them.
constexpr uint64_t kSlowCopies = 100;
constexpr uint64_t kCopiesInLine = 4;  // that one waits for
bool copies_stay(const SimulationOptions& options) {
  const bool may = options.replicas || options.exact;
  return options.followers || (may && mix(options.seed, 0x73746179) % 3 == 0);
}

BrokerHost::Options broker_options(const SimulationOptions& options, Draw& draw) {
  BrokerHost::Options broker;
  broker.bug = options.bug;
  broker.broker.software = "sim";
  broker.broker.failures_max = 1'000'000'000;  // a job that is given up would hide what went wrong
  broker.broker.loading_deadline = seconds(60);
  if (!draw.one_in(2)) broker.broker.run.copy_rate = 500'000;
  broker.broker.pool.gone_max = 1;  // whoever is needed, all the same, must not be forgotten
  broker.broker.measures_links = options.seed % 5 == 0;
  broker.broker.draw_secret = [tickets = Draw(options.seed, 0x70726f62)]() mutable {
    proto::Secret secret{};
    const uint64_t value = tickets.next();
    std::memcpy(secret.data(), &value, sizeof value);
    return secret;
  };
  broker.broker.run.mean_checks = {
      .each = UINT32_MAX,  // a piece of every tensor
      .draw = [numbers = Draw(options.seed, 0x6d65616e)]() mutable { return numbers.next(); },
      .hash = hash_of_bytes,
      .take = take_piece};
  broker.broker.drift.look_after = {};
  if (options.replicas || options.exact) {  // they come and go
    broker.broker.measures_links = options.seed % 2 == 0;
    if (copies_stay(options))
      broker.broker.run.copy_rate = kSlowCopies,
      broker.broker.slowest_bytes_per_second = double{kSlowCopies} / kCopiesInLine;
  }
  if (options.drift) {
    broker.plans_by_pace = broker.broker.measures_links = true;
    broker.broker.run.copies_state = false;  // the lines carry tensors alone
    if (options.drift->moves) broker.broker.drift.look_after = seconds(10);
  } else if (options.slow) {  // as a broker is started
    broker.plans_by_pace = broker.broker.measures_links = options.slow->foreseen;
    broker.broker.loading_deadline = broker::BrokerOptions{}.loading_deadline;
    if (options.slow->foreseen) broker.broker.drift.look_after = broker::DriftOptions{}.look_after;
    broker.broker.run.copy_rate = kSlowLine / 10;  // what the planner leaves copies of such a line
  } else if (options.replicas || (options.seed % 3 == 0 && options.peers < 32)) {
    broker.broker.drift.look_after = seconds(3 + static_cast<int64_t>(options.seed % 11));
    broker.broker.drift.steps_min = 2;
    broker.broker.drift.pay_min = 0;
  }
  // States are small here: without this nearly all copies would be waited for, and go to the broker.
  if (mix(options.seed, 78) % 2 == 0) broker.broker.run.eager_bytes_max = 0;
  if (options.bug == Bug::LeaseNeverExpires) broker.broker.lease = std::chrono::hours(10);
  if (draw.one_in(4)) broker.broker.run.script_max = 48;
  broker.append_high = draw.doubling(milliseconds(1), milliseconds(100));
  return broker;
}

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      draw_(options.seed, 0x73696d),
      world_(options.seed),
      latency_max_(options.drift  ? Duration(milliseconds(5))
                   : options.slow ? Duration(milliseconds(100))
                                  : draw_.doubling(milliseconds(1), milliseconds(200))),
      network_(world_, options.seed, latency_max_,
               is_scenario() ? kDriftPath : draw_.between(250'000, 4'000'000)),
      broker_options_(broker_options(options, draw_)),
      checkers_(world_, store_, blobs_, specs_, broker_options_.broker.run.script_max),
      broker_(world_, network_, store_, blobs_, checkers_, specs_, broker_options_, options.seed) {
  world_.set_trace(options.trace);
  if (options.replicas) blobs_.set_collect_age(std::chrono::hours(1));
}

JobSpec Simulation::draw_job(uint32_t index) {
  JobSpec job;
  job.seed = mix(options_.seed, index);
  if (options_.drift) {
    job.microbatch_size = 512;  // what crosses takes 50 ms of a line
    job.width = 64;
    job.op = milliseconds(2);
    job.steps = options_.drift->steps;
    return job;
  }
  if (options_.slow) {
    job.layers = 6;
    job.stages = 3;
    job.width = 1024;
    job.microbatch_size = 16384;
    job.data_bytes = 4 << 20;
    job.slots = 2;
    job.clip_norm = 1;
    job.op = milliseconds(100);
    job.steps = options_.slow->steps;
    job.evaluate_every = 5;
    job.forward_microbatches = 2;
    job.checkpoint_every = seconds(300);
    return job;
  }
  if (options_.peers >= 32) {  // as on a WAN: steps of some seconds
    job.layers = job.stages = 16;
    job.microbatches = 8;
    job.op = milliseconds(20);
    job.slots = 2;
    job.clip_norm = 1;
    job.width = 128;
    job.checkpoint_steps = 50;
    const auto minutes = options_.chaos.value_or(seconds(300));
    job.steps = std::max<uint64_t>(20, static_cast<uint64_t>(minutes / seconds(5)));
    return job;
  }
  job.layers = static_cast<uint32_t>(draw_.between(1, 6));
  job.stages = static_cast<uint32_t>(
      draw_.between(1, std::min<uint64_t>(job.layers, std::max(2u, options_.peers - 2))));
  job.wraps = job.stages >= 2 && job.layers > job.stages && draw_.one_in(3);
  job.any_stages = !job.wraps && draw_.one_in(4);
  job.predicts = draw_.one_in(8);
  job.width = std::array{16, 16, 64, 300, 700}[draw_.below(5)];
  job.microbatches = static_cast<uint32_t>(draw_.between(1, 6));
  job.microbatch_size = 4;
  job.slots = static_cast<uint32_t>(draw_.below(3));
  if (draw_.one_in(2)) job.clip_norm = 0.5;
  job.op = draw_.doubling(milliseconds(1), milliseconds(16));
  job.steps = draw_.between(8, 100);
  if (job.predicts || draw_.one_in(2)) job.forward_microbatches = static_cast<uint32_t>(draw_.between(1, 30));
  if (!job.predicts && job.forward_microbatches != 0 && draw_.one_in(2))
    job.evaluate_every = draw_.between(2, 10);
  if (draw_.one_in(2))
    job.checkpoint_steps = draw_.between(2, 12);
  else if (draw_.one_in(2))
    job.checkpoint_every = draw_.doubling(seconds(2), seconds(30));
  job.stop = draw_.one_in(12);
  if (options_.replicas && (index == 0 || draw_.one_in(2))) draw_replicas(job);
  if (options_.exact && (index == 0 || draw_.one_in(2))) draw_exact(job);
  if (copies_stay(options_)) {
    job.width = 16;
    job.layers = std::min(job.layers, 3u);
    job.stages = std::min(job.stages, job.layers);
    job.wraps = job.wraps && job.stages >= 2 && job.layers > job.stages;
  }
  return job;
}

void Simulation::draw_replicas(JobSpec& job) {
  job.predicts = job.wraps = job.any_stages = false;
  job.stages = std::min({job.stages, 3u, job.layers});
  job.every = draw_.between(1, 6);
  const uint32_t most = std::min(5u, options_.peers - 1);
  job.replicas = static_cast<uint32_t>(draw_.between(2, most));
  if (draw_.one_in(2) || options_.followers) {
    job.replicas = static_cast<uint32_t>(draw_.between(1, 2));
    job.replicas_max = static_cast<uint32_t>(draw_.between(job.replicas + 1, 6));
  }
  job.has_shares = draw_.one_in(3);
  job.agreement.is_lossy = draw_.one_in(2);
  job.agreement.averages = draw_.one_in(3);
  job.steps = draw_.between(20, 200) * (options_.followers ? 3 : 1);
  if (const uint64_t overlaps = mix(options_.seed, 79); overlaps % 3 == 0)
    job.agreement.settle_every = 2 + overlaps / 3 % 4;
  if (job.agreement.settle_every > 1) job.agreement.fragments = 1 + mix(options_.seed, 81) % 4;
  job.agreement.leaves_every_open = mix(options_.seed, 80) % 4 == 0;
}

void Simulation::draw_exact(JobSpec& job) {
  job.predicts = job.wraps = job.any_stages = false;
  job.stages = std::min({job.stages, 3u, job.layers});
  job.ranges = static_cast<uint32_t>(draw_.between(2, std::min(5u, options_.peers - 1)));
  job.microbatches = job.ranges * static_cast<uint32_t>(draw_.between(1, 3));
  job.shares_slots = draw_.one_in(2);
}

std::unique_ptr<PeerHost> Simulation::make_peer(NodeId node, const PeerId& key, uint64_t seed) {
  PeerHost::Options options;
  options.node = node;
  options.key = key;
  options.bug = options_.bug;
  const bool one_kind = is_scenario() || options_.peers >= 32 || mix(options_.seed, 77) % 2 == 0;
  options.fingerprint = one_kind || seed % 4 != 0 ? "a" : "b";
  options.reachable =
      options_.slow ? !options_.slow->relayed : options_.drift || options_.followers || seed % 5 != 0;
  options.promised = is_scenario() || options_.peers >= 32 ? 1000 : 700 + seed % 600;
  options.speed = options.promised;
  if (const auto liar = liars_.find(node); liar != liars_.end()) options.liar = liar->second;
  options.at_agreement = [this, node] {
    if (faults_) faults_->at_agreement(node);
  };
  return std::make_unique<PeerHost>(world_, network_, broker_, checkers_, options, seed,
                                    [this](NodeId wanted) -> PeerHost* {
                                      for (const auto* hosts : {&peers_, &twins_})
                                        for (const auto& host : *hosts)
                                          if (host->node() == wanted) return host.get();
                                      return nullptr;
                                    });
}

PeerId Simulation::key_of(NodeId node) const {
  PeerId key;
  key.digest = digest_of(mix(options_.seed, node));
  return key;
}

// Of those that join at once so many stay honest that every job has its stages, and one spare.
void Simulation::draw_liars() {
  uint32_t needed = 0;
  for (const JobSpec& job : specs_) needed = std::max({needed, job.stages + 1, job.replicas + 1});
  // Where more lie at once about what they have learnt, nobody can tell whether it is the data.
  std::optional<Lie> lie = options_.lie;
  const bool is_mixed = options_.replicas && !lie && mix(options_.seed, 0x6d6978) % 2 == 0;
  if (options_.replicas && !lie && !is_mixed) lie = Lie::NanDifferences;
  const size_t most = !options_.replicas                                     ? options_.peers
                      : lie == Lie::HugeDifferences || lie == Lie::HugeMeans ? 1
                                                                             : kLiarsAmongReplicas;
  for (NodeId node = 1; node + needed <= options_.peers && liars_.size() < most; ++node)
    if (mix(options_.seed, 0x6c69617200 + node) % 100 < options_.liars)
      liars_[node] = std::make_shared<Liar>(mix(options_.seed, node), lie, is_mixed);
}

void Simulation::set_uplink(NodeId node, double bytes_per_second) {
  network_.set_line(node, Network::Direction::Out, bytes_per_second);
}

void Simulation::set_lines(double bytes_per_second) {
  for (const auto& peer : peers_)
    for (const Network::Direction direction : {Network::Direction::Out, Network::Direction::In})
      network_.set_line(peer->node(), direction, bytes_per_second);
}

void Simulation::change_lines() {
  const DriftScenario::Lines lines = options_.drift->lines;
  if (lines == DriftScenario::Lines::Sway) {
    for (const auto& peer : peers_) {
      const uint64_t uplink = kDriftLine * draw_.between(875, 1125) / 1000;
      set_uplink(peer->node(), static_cast<double>(uplink));
    }
    return world_.after(seconds(5), [this] { change_lines(); });
  }
  if (slowed_ != 0) set_uplink(slowed_, kDriftLine);
  std::vector<NodeId> at_work;
  for (const auto& peer : peers_)
    if (peer->alive() && peer->holds_stage() && peer->node() != slowed_) at_work.push_back(peer->node());
  if (at_work.empty()) return world_.after(seconds(1), [this] { change_lines(); });
  slowed_ = at_work[draw_.below(at_work.size())];
  set_uplink(slowed_, static_cast<double>(kDriftLine) / 16);
  if (lines == DriftScenario::Lines::Roam) world_.after(seconds(300), [this] { change_lines(); });
}

bool Simulation::all_done() const {
  return std::all_of(users_.begin(), users_.end(), [](const auto& user) { return user->is_done(); });
}

void Simulation::run_until(Instant end) {
  bool over = false;
  world_.at(end, [&over] { over = true; });
  while (!over && !all_done() && world_.step()) continue;
  // What would set `over` must not outlive it.
  if (!over && !world_.failure()) world_.clear();
}

// What is left for a job to do takes at most: its steps, each as long as it takes when every message is late
// and lost once; a round and a checkpoint of its state over the slowest path at each; and, for whatever was
// wrong when the faults stopped, each deadline by which it is found out, `recoveries` times over.
Duration Simulation::bound() const {
  // Liars go on lying.
  const int recoveries = liars_.empty() ? 6 : 6 * (1 + static_cast<int>(liars_.size()));
  const broker::BrokerOptions options;
  Duration sum = seconds(60);  // users ask now and then
  for (const JobSpec& job : specs_) {
    const Duration task = job.op * (10 * job.layers + 2) * 1150 / 700;
    const Duration hop = 2 * latency_max_ + milliseconds(100);
    const Duration step =
        (job.microbatches + 2 * job.stages + (job.is_exact() ? 2 * job.layers : 0)) * (task + 2 * hop);
    const int64_t tensors = job.has_replicas() || job.is_exact() ? (4 + job.slots) * 6 : 1 + job.slots;
    const int64_t state = 4 * job.width * job.width * job.layers * tensors;
    const int64_t rate = copies_stay(options_) ? kSlowCopies : 250'000;
    const Duration upload = Duration(state * 1'000'000'000 / rate) + hop * 8;
    const uint64_t forwards =
        job.forward_microbatches * (1 + (job.evaluate_every != 0 ? job.steps / job.evaluate_every : 0));
    sum += static_cast<Duration::rep>(job.steps) * (step + upload) +
           static_cast<Duration::rep>(forwards) * (task + hop + hop) * job.stages;
    sum += recoveries * (std::max(options.stall_deadline, 20 * step) + options.lease +
                         options.return_deadline + seconds(60) /* loading */ + seconds(30) /* links */ +
                         2 * (copies_stay(options_) ? kCopiesInLine : 1) * upload);
  }
  return sum;
}

bool Simulation::all_run() const {
  for (const auto& [number, job] : store_.state().jobs)
    if (job.last.state < proto::JobState::Finished && job.last.state != proto::JobState::Running)
      return false;
  return std::none_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->alive() && (peer->machine()->state() == peer::Session::State::Draining || peer->hangs());
  });
}

// Those who take part; nothing has happened yet.
uint64_t Simulation::cast() {
  const bool is_large = is_scenario() || options_.peers >= 32;
  const uint64_t jobs = is_large ? 1 : draw_.between(1, 3);
  for (uint32_t j = 0; j < jobs; ++j) specs_.push_back(draw_job(j));
  draw_liars();
  std::set<PeerId> liars;
  std::set<std::string> names;
  bool of_means = false;
  for (const auto& [node, liar] : liars_) {
    of_means |= liar->may_tell(Lie::WrongMeans);
    liars.insert(key_of(node));
    names.insert("peer peer-" + std::to_string(node));
  }
  checkers_.expect_liars(std::move(liars), std::move(names), of_means);
  const uint32_t most = is_large ? options_.peers : options_.peers + options_.peers / 2;
  for (NodeId node = 1; node <= most; ++node) {
    peers_.push_back(make_peer(node, key_of(node), draw_.next()));
  }
  for (NodeId i = 0; i < 2; ++i)
    twins_.push_back(make_peer(1000 + i, peers_[i]->options().key, draw_.next()));
  return jobs;
}

void Simulation::begin(uint64_t jobs) {
  if (options_.drift) {
    set_lines(kDriftLine);
    world_.after(seconds(60), [this] { change_lines(); });
  }
  if (options_.slow) set_lines(kSlowLine);
  world_.note(What::Phase, 0);
  broker_.start();
  for (uint32_t p = 0; p < options_.peers; ++p)
    world_.after(draw_.between(Duration{}, Duration(seconds(2))), [this, p] { peers_[p]->start(); });
  for (uint32_t j = 0; j < jobs; ++j) {
    users_.push_back(
        std::make_unique<User>(world_, network_, broker_, checkers_, 2000 + j, j, specs_[j], options_.seed));
    world_.after(draw_.between(Duration{}, Duration(seconds(20))), [this, j] { users_[j]->start(); });
  }
}

// Faults of all kinds, then none, then those that nobody may notice.
void Simulation::run_with_faults() {
  const auto goes_on = [&] { return !world_.failure() && !all_done(); };
  faults_ = std::make_unique<Faults>(Faults::Cast{.world = &world_,
                                                  .network = &network_,
                                                  .broker = &broker_,
                                                  .peers = &peers_,
                                                  .twins = &twins_,
                                                  .join = [this]() -> PeerHost* {
                                                    for (auto& peer : peers_)
                                                      if (!peer->alive()) return peer.get();
                                                    return nullptr;
                                                  }},
                                     options_.seed);
  faults_->start();
  run_until(world_.now() + options_.chaos.value_or(draw_.doubling(seconds(20), seconds(240))));
  if (!goes_on()) return;
  faults_->stop();
  broker_.stop_moves_by_chance();
  world_.note(What::Phase, 1);
  run_until(world_.now() + seconds(60));
  if (!goes_on() || !liars_.empty() || !all_run()) return;
  world_.note(What::Phase, 2);
  checkers_.expect_only_restarts(true);
  faults_->restart_only();
  run_until(world_.now() + seconds(60));
  checkers_.expect_only_restarts(false);
  if (goes_on()) faults_->stop();
}

void Simulation::run_to_the_end() {
  if (world_.failure() || all_done()) return;
  world_.note(What::Phase, 3);
  const Duration allowed = bound() + (options_.faults ? Duration{} : options_.chaos.value_or(Duration{}));
  run_until(world_.now() + allowed);
  if (world_.failure() || all_done()) return;
  std::string open;
  for (const auto& user : users_)
    if (!user->is_done()) open += "; " + what_is_open(*user);
  world_.fail("not done " + std::to_string(allowed / seconds(1)) + " s after the last fault" + open);
}

std::string Simulation::what_is_open(const User& user) const {
  if (!user.job()) return "job not accepted";
  const auto& stored = store_.state().jobs.at(*user.job());
  return "job " + std::to_string(*user.job()) + " is " + std::string(to_string(stored.last.state)) +
         " at step " + std::to_string(checkers_.step_of(*user.job())) + " of " +
         std::to_string(stored.last.steps) + " (" + stored.last.reason + ")";
}

SimulationResult Simulation::run() {
  const uint64_t jobs = cast();
  begin(jobs);
  if (options_.faults) run_with_faults();
  run_to_the_end();
  SimulationResult result = result_so_far();
  result.jobs = static_cast<uint32_t>(jobs);
  return result;
}

SimulationResult Simulation::result_so_far() const {
  SimulationResult result;
  result.failure = world_.failure();
  if (result.failure) result.last_notes = world_.last_notes();
  result.trace_hash = world_.trace_hash();
  result.notes = world_.noted();
  result.virtual_time = world_.now().time_since_epoch();
  result.counts = checkers_.counts();
  result.replicas = checkers_.replica_counts();
  result.in_flight_max = network_.in_flight_max();
  result.tensors = world_.noted(What::Tensor);
  result.uploads = world_.noted(What::Uploaded);
  result.given = world_.noted(What::Given);
  result.links_down = world_.noted(What::LinkDown);
  result.links_failed = world_.noted(What::LinkFailed);
  result.connections_lost = world_.noted(What::Lost);
  result.liars = liars_.size();
  for (const auto& [node, liar] : liars_) result.lies += liar->told();
  if (broker_.core() != nullptr) result.evicted = broker_.core()->counters().evicted;
  return result;
}

}  // namespace

SimulationResult simulate(const SimulationOptions& options) { return Simulation(options).run(); }

}  // namespace weft::sim
