#include "tests/peer_machine/shell.h"

#include <cstring>

#include "base/overloaded.h"
#include "dag/op_table.h"

namespace weft::test {

using peer::MicrobatchKey;
using peer::TaskKind;

namespace {
std::map<Digest, std::string>& names() {
  static std::map<Digest, std::string> kNames;
  return kNames;
}

proto::StageProgram program_of(proto::ProgramKind kind, const StageSpec& spec) {
  const dag::TensorSpec pair{dag::DType::F32, {2}};
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", pair), y = builder.input("y", pair);
  builder.output("loss", builder.add(dag::OpKind::Add, {x, y}), dag::OutputRole::Prediction);
  proto::StageProgram program;
  program.kind = kind;
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  program.segment_of_op.assign(program.graph->ops().size(), 0);
  if (spec.reads_data) program.data_inputs = {"x"};
  if (spec.receives) program.receives = {{7, y, 1}};
  return program;
}
}  // namespace

Digest digest_of(const std::string& name) {
  Digest digest;
  std::memcpy(digest.bytes.data(), name.data(), std::min<size_t>(name.size(), 32));
  names()[digest] = name;
  return digest;
}

proto::TensorReference tensor_of(const std::string& initializer, const std::string& content) {
  return {dag::of_initializer(initializer), dag::TensorSpec{dag::DType::F32, {16}}, digest_of(content)};
}

proto::AssignStage assignment(const StageSpec& spec) {
  proto::AssignStage assign;
  assign.run = spec.run;
  assign.plan_version = spec.plan_version;
  assign.stage_count = spec.receives ? 2 : 1;
  assign.training.batch_size = 8;
  assign.training.microbatch_size = 4;
  assign.training.steps = 100;
  assign.training.clip_norm = spec.clip_norm;
  assign.after_step = spec.after_step;
  assign.microbatches_in_flight = 2;
  assign.copy_rate = 1000;
  using enum proto::ProgramKind;
  if (spec.predicts)
    assign.programs.push_back(program_of(Predict, spec));
  else
    assign.programs.push_back(program_of(Train, spec));
  if (spec.evaluates) assign.programs.push_back(program_of(Evaluate, spec));
  for (size_t i = 0; i < spec.contents.size(); ++i)
    assign.tensors.push_back(tensor_of("w" + std::to_string(i), spec.contents[i]));
  return assign;
}

Shell::Shell(peer::PeerOptions options) : peer(std::move(options)) {}

void Shell::act(peer::PeerEffects effects) {
  const uint32_t asked_before = device_asked;
  for (peer::PeerEffect& effect : effects)
    std::visit(Overloaded{
                   [&](peer::ConnectToBroker&) { ++connects; },
                   [&](peer::DropBroker&) { ++drops; },
                   [&](peer::TellBroker& tell) { told.push_back(std::move(tell.message)); },
                   [&](peer::Leave& leave) {
                     left = true;
                     why = leave.why;
                   },
                   [&](peer::Say&) {},
                   [&](peer::OpenLinks& open) { links = open; },
                   [&](peer::CloseLinks& close) {
                     if (links && links->generation == close.generation) links.reset();
                   },
                   [&](peer::InviteLink&) {},
                   [&](peer::Probe& probe) { probes.push_back(probe); },
                   [&](peer::FetchBlob& fetch) {
                     std::erase_if(fetches, [&](const auto& f) { return f.sha256 == fetch.sha256; });
                     fetches.push_back(fetch);
                   },
                   [&](peer::ForgetBlobs& forget) {
                     for (const Digest& sha256 : forget.blobs)
                       EXPECT_EQ(memory.erase(sha256), 1u) << "forgets what is not held";
                   },
                   [&](peer::MakeRunner& make) {
                     for (const auto& tensor : make.assignment->tensors)
                       EXPECT_TRUE(is_follower(*make.assignment) || memory.contains(tensor.sha256))
                           << "a runner without its tensors";
                     runner = make;
                   },
                   [&](peer::LoadRunner& load) {
                     for (const auto& tensor : load.assignment->tensors)
                       EXPECT_TRUE(memory.contains(tensor.sha256)) << "loaded without its tensors";
                     ++runners_loaded;
                   },
                   [&](peer::DropRunner& drop) {
                     ++runners_dropped;
                     if (runner && runner->generation == drop.generation) runner.reset();
                     std::erase_if(tasks, [&](const auto& t) { return t.generation == drop.generation; });
                   },
                   [&](peer::ParkRunner& park) {
                     parked.push_back(park.generation);
                     std::erase_if(tasks, [&](const auto& t) { return t.generation == park.generation; });
                   },
                   [&](peer::TakeRunner& take) {
                     taken.push_back(take);
                     runner = peer::MakeRunner{take.generation, take.assignment};
                   },
                   [&](peer::AskDevice&) { ++device_asked; },
                   [&](peer::RunTask& task) { tasks.push_back(task); },
                   [&](peer::PassRequest& request) { requests.push_back(std::move(request)); },
                   [&](peer::FetchData& fetch) { data.push_back(fetch); },
                   [&](peer::DropMicrobatches& drop) {
                     dropped_microbatches.insert(dropped_microbatches.end(), drop.keys.begin(),
                                                 drop.keys.end());
                   },
                   [&](peer::OfferBlobs& offer) { offers.push_back(std::move(offer)); },
                   [&](peer::UploadBlob& put) {
                     EXPECT_TRUE(memory.contains(put.sha256)) << "uploads what is not held";
                     puts.push_back(put);
                   },
               },
               effect);
  EXPECT_EQ(peer.held(), memory);
  if (device_asked > asked_before && !device_hangs) act(peer.on_device(now, {}));
}

void Shell::join(std::optional<Duration> lease) {
  act(peer.start(now));
  act(peer.on_connected(now));
  proto::HelloAck ack;
  ack.heartbeat_interval = std::chrono::seconds(2);
  ack.lease = lease.value_or(std::chrono::seconds(10));
  say(ack);
  told.clear();
}

void Shell::tick(Duration after) {
  now += after;
  act(peer.on_tick(now, Bytes{1 << 30}));
}

void Shell::lose_broker() {
  act(peer.on_lost(now, {ErrorCode::Unavailable, "reset"}));
  const Error gone{ErrorCode::Unavailable, "the connection ended"};
  for (const auto& fetch : std::exchange(fetches, {})) act(peer.on_blob(now, fetch.sha256, fail(gone)));
  for (const auto& fetch : std::exchange(data, {}))
    act(peer.on_data(now, fetch.generation, fetch.key, fail(gone)));
  for (const auto& offer : std::exchange(offers, {})) act(peer.on_missing(now, offer.upload, fail(gone)));
  for (const auto& put : std::exchange(puts, {}))
    act(peer.on_uploaded(now, put.upload, put.sha256, fail(gone)));
}

void Shell::reconnect() {
  const uint32_t before = connects;
  while (connects == before && !left) {
    ASSERT_TRUE(peer.next_deadline(now).has_value());
    now = std::max(now, *peer.next_deadline(now));
    tick();
  }
  told.clear();
  act(peer.on_connected(now));
}

void Shell::welcome() {
  proto::HelloAck ack;
  ack.heartbeat_interval = std::chrono::seconds(2);
  ack.lease = std::chrono::seconds(10);
  say(ack);
}

void Shell::answer_fetches(const Status& status) {
  while (!fetches.empty()) {
    const peer::FetchBlob fetch = fetches.front();
    fetches.pop_front();
    if (status) memory.insert(fetch.sha256);
    act(peer.on_blob(now, fetch.sha256, status));
  }
}

void Shell::answer_data() {
  while (!data.empty()) {
    const peer::FetchData fetch = data.front();
    data.pop_front();
    act(peer.on_data(now, fetch.generation, fetch.key, (fetch.key.step - 1) * 8 + fetch.key.microbatch * 4));
  }
}

void Shell::load(const proto::AssignStage& assign) {
  run = assign.run;
  plan_version = assign.plan_version;
  sequence = 0;
  say(assign);
  answer_fetches();
  ASSERT_TRUE(runner.has_value());
  ASSERT_TRUE(links.has_value());
  act(peer.on_runner_made(now, runner->generation, peer::RunnerSize{Bytes{100}, Bytes{10}, edges}));
  act(peer.on_links_up(now, links->generation));
  EXPECT_EQ(told_of<proto::StageReady>().size(), 1u);
}

void Shell::finish_task(const peer::RunTask& run_task) {
  const peer::Task& task = run_task.task;
  peer::TaskOutcome outcome;
  outcome.busy = std::chrono::milliseconds(10);
  if (task.kind == TaskKind::Segment) outcome.loss = {1};
  if (task.kind == TaskKind::Squares || task.with_squares) outcome.squares = {1, 2};
  act(peer.on_task_done(now, run_task.generation, task, outcome));
  std::vector<proto::TensorReference> made;
  if (task.kind == TaskKind::Snapshot)
    for (const char* name : {"w0", "w1"})
      made.push_back(tensor_of(name, std::string(name) + "@" + std::to_string(task.key.step)));
  if (task.kind == TaskKind::Segment && task.key.program == proto::ProgramKind::Predict)
    made.push_back(tensor_of("y", "p" + std::to_string(task.key.microbatch)));
  if (made.empty()) return;
  for (const auto& tensor : made) memory.insert(tensor.sha256);
  act(peer.on_hashed(now, run_task.generation, task, made));
}

void Shell::work() {
  while (!tasks.empty() || !data.empty()) {
    answer_data();
    if (tasks.empty()) continue;
    const peer::RunTask task = tasks.front();
    tasks.pop_front();
    finish_task(task);
  }
}

void Shell::answer_uploads() {
  while (!offers.empty() || !puts.empty()) {
    if (!offers.empty()) {
      const peer::OfferBlobs offer = offers.front();
      offers.pop_front();
      std::vector<Digest> missing;
      for (const Digest& sha256 : offer.blobs)
        if (!stored.contains(sha256)) missing.push_back(sha256);
      act(peer.on_missing(now, offer.upload, missing));
      continue;
    }
    const peer::UploadBlob put = puts.front();
    puts.pop_front();
    stored.insert(put.sha256);
    act(peer.on_uploaded(now, put.upload, put.sha256, {}));
  }
}

uint64_t Shell::command(proto::CommandKind kind, uint64_t step, uint64_t committed, uint64_t settled,
                        uint64_t keep_from, uint32_t microbatches) {
  say(proto::Command{.run = run,
                     .plan_version = plan_version,
                     .kind = kind,
                     .step = step,
                     .microbatches = microbatches,
                     .sequence = ++sequence,
                     .committed = committed,
                     .settled = settled,
                     .keep_from = keep_from});
  return sequence;
}

std::set<std::string> Shell::fetching() const {
  std::set<std::string> found;
  for (const auto& fetch : fetches) found.insert(names()[fetch.sha256]);
  return found;
}

}  // namespace weft::test
