// What a peer's process computes and transfers: tasks, hashes, blobs, microbatches of data.
#include <algorithm>

#include "sim/peer_host.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- compute

void PeerHost::make_runner(const peer::MakeRunner& effect) {
  for (const auto& tensor : effect.assignment->tensors)
    if (!blobs_.has(tensor.sha256))
      return world_.fail("a runner is to be made from a tensor that is not here");
  if (!stage_ || stage_->generation != effect.generation) {
    retire_links();
    stage_ = Stage{effect.generation, effect.assignment, nullptr, nullptr};
  }
  const Instant made = device_.work(world_.now(), draw_.between(milliseconds(5), milliseconds(200)));
  later(made - world_.now(), [this, effect] {
    world_.note(What::Runner, options_.node, effect.assignment->run, effect.assignment->plan_version);
    if (stage_ && stage_->generation == effect.generation) {
      stage_->runner = std::make_shared<HashRunner>(effect.assignment);
      checkers_.on_stage_loaded(*effect.assignment);
    }
    act(machine_->on_runner_made(world_.now(), effect.generation, peer::RunnerSize{{1000}, {1000}}));
  });
}

void PeerHost::run_task(const peer::RunTask& effect) {
  if (!stage_ || stage_->generation != effect.generation || !stage_->runner)
    return world_.fail("a task without a runner");
  const auto runner = stage_->runner;
  HashRunner::Inputs inputs;
  if (effect.task.kind == peer::TaskKind::Segment) {
    if (auto* arrived = microbatches_.tensors(effect.task.key))
      for (auto at = arrived->begin(); at != arrived->end();) {
        if (at->first >= runner->program(effect.task.key.program).receives.size())
          return world_.fail("peer " + std::to_string(options_.node) +
                             ": a tensor that is not for this stage");
        if (!runner->reads(effect.task, at->first)) {
          ++at;
          continue;
        }
        checkers_.on_tensor_used(*stage_->assignment, at->second.header);
        inputs.received.emplace_back(at->first, at->second.value);
        at = arrived->erase(at);
      }
    if (const auto data = microbatches_.data(effect.task.key)) inputs.sample_position = *data;
  }
  const JobSpec* spec = checkers_.spec_of(stage_->assignment->run);
  const auto cost =
      static_cast<uint64_t>(spec != nullptr ? spec->op.count() : 1'000'000) * runner->work(effect.task);
  const Duration busy(
      static_cast<Duration::rep>(cost * 1000 / options_.speed * draw_.between(95, 115) / 100));
  const Instant done = device_.work(world_.now(), busy);
  later(done - world_.now(), [this, effect, runner, inputs = std::move(inputs), busy] {
    finish_task(effect, runner, inputs, busy);
  });
}

void PeerHost::finish_task(const peer::RunTask& effect, const std::shared_ptr<HashRunner>& runner,
                           const HashRunner::Inputs& inputs, Duration busy) {
  const peer::Task& task = effect.task;
  world_.note(What::TaskDone, options_.node, (static_cast<uint64_t>(task.kind) << 8) | task.segment,
              (task.key.step << 16) | task.key.microbatch);
  auto output = runner->run(task, inputs);
  if (!output) return world_.fail("peer " + std::to_string(options_.node) + ": " + output.error().message);
  output->outcome.busy = busy;
  const bool current = stage_ && stage_->generation == effect.generation && stage_->runner == runner;
  if (current && stage_->links && !output->sends.empty()) {
    const proto::StageProgram& program = runner->program(task.key.program);
    for (const auto& [index, value] : output->sends) {
      if (options_.liar && options_.liar->withholds_tensor()) continue;
      const proto::EdgeEnd& end = program.sends[index];
      const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
      stage_->links->send(
          other_end(end, task.key.microbatch),
          {.header = {.run = stage_->assignment->run,
                      .plan_version = stage_->assignment->plan_version,
                      .step = task.key.step,
                      .microbatch = task.key.microbatch,
                      .edge = end.edge,
                      .program = task.key.program,
                      .direction = backward ? proto::Direction::Backward : proto::Direction::Forward,
                      .replica = 0,
                      .spec = program.graph->spec(end.value),
                      .codec = end.codec},
           .value = value,
           .spoilt = options_.liar && options_.liar->spoils_tensor()});
    }
  }
  if (task.kind == peer::TaskKind::Snapshot)
    hash(effect.generation, task, std::move(output->snapshot), runner);
  if (!output->predictions.empty()) hash(effect.generation, task, std::move(output->predictions), runner);
  act(machine_->on_task_done(world_.now(), effect.generation, task, output->outcome));
}

void PeerHost::hash(uint64_t generation, const peer::Task& task, std::vector<HashRunner::Named> named,
                    const std::shared_ptr<HashRunner>& runner) {
  const bool late = options_.bug == Bug::SnapshotLate && task.kind == peer::TaskKind::Snapshot;
  later(late ? Duration(milliseconds(500)) : draw_.between(milliseconds(1), milliseconds(50)),
        [this, generation, task, named, runner, late] {
          world_.note(What::Hashed, options_.node, generation, task.key.step);
          std::vector<proto::TensorReference> tensors;
          for (const auto& entry : late ? runner->state() : named) {
            const Digest digest = digest_of(entry.value);
            tensors.push_back({entry.key, entry.spec, digest});
            blobs_.hold(digest, entry.spec.bytes().value);
          }
          act(machine_->on_hashed(world_.now(), generation, task, std::move(tensors)));
        });
}

// ---- transfers

void PeerHost::fetch_blob(const peer::FetchBlob& effect) {
  // Asked for again, without a limit: the first answer counts no more.
  const uint64_t number = blobs_.begin_fetch(effect.sha256);
  const auto done = [this, effect, number](const Status& status) {
    if (!blobs_.end_fetch(effect.sha256, number)) return;
    world_.note(What::Blob, options_.node, value_of(effect.sha256), status.has_value());
    if (status) blobs_.hold(effect.sha256, static_cast<int64_t>(effect.size));
    act(machine_->on_blob(world_.now(), effect.sha256, status));
  };
  if (effect.source) return fetch_from_peer(effect, done);
  transfers_.request(
      100, effect.rate,
      [this, effect]() -> PeerLine::Answer {
        const auto size = broker_.blob_size(effect.sha256);
        if (!size) return {fail(size.error()), 100};
        return {{}, *size};
      },
      done);
}

// Over a connection of the two, as the shells have it (peer/service/blob_sources).
void PeerHost::fetch_from_peer(const peer::FetchBlob& effect, std::function<void(const Status&)> done) {
  const PeerLine::Done answer = transfers_.once(std::move(done));
  if (transfers_.breaks(answer)) return;
  const auto [node, epoch] = node_at(effect.source->addresses.front());
  PeerHost* host = find_host_(node);
  if (host == nullptr || host->address() != epoch || network_.blocked(options_.node, node))
    return world_.after(seconds(5), [answer] { answer(fail(ErrorCode::Unavailable, "nobody answers")); });
  world_.after(seconds(60), [answer] { answer(fail(ErrorCode::Timeout, "nothing came")); });
  world_.after(network_.latency(options_.node, node), [this, host, effect, answer] {
    if (!host->machine_ || host->options_.key != effect.source->peer)
      return answer(fail(ErrorCode::Unavailable, "connection refused"));
    host->run([host, effect, to = options_.node, answer] { host->give(effect, to, answer); });
  });
}

void PeerHost::give(const peer::FetchBlob& effect, NodeId to, std::function<void(const Status&)> done) {
  const NodeId here = options_.node;
  const auto bytes = blobs_.size(effect.sha256);
  if (!bytes)
    return world_.after(network_.latency(here, to),
                        [done] { done(fail(ErrorCode::NotFound, "this peer has it not")); });
  transfers_.give(to, *bytes, effect.rate,
                  [this, life = process_.life(), here, to, sha256 = effect.sha256, done] {
                    if (life != process_.life() || network_.blocked(here, to))
                      return done(fail(ErrorCode::Unavailable, "the connection ended"));
                    world_.note(What::Given, here, to);
                    done({});
                    run([this, sha256] { act(machine_->on_giving(world_.now(), sha256, /*whole=*/true)); });
                  });
}

void PeerHost::fetch_data(const peer::FetchData& effect) {
  if (!stage_) return;
  const auto assignment = stage_->assignment;
  const JobSpec* spec = checkers_.spec_of(assignment->run);
  const int64_t size = spec != nullptr ? spec->data_bytes : JobSpec{}.data_bytes;
  const auto position = std::make_shared<uint64_t>(0);
  transfers_.request(
      150, 0,
      [this, effect, assignment, position, size]() -> PeerLine::Answer {
        const auto at = broker_.microbatch(assignment->run, assignment->data_key, *assignment,
                                           effect.key.program, effect.key.step, effect.key.microbatch);
        if (!at) return {fail(at.error()), 100};
        *position = *at;
        return {{}, size};
      },
      [this, effect, position](const Status& status) {
        world_.note(What::Data, options_.node, static_cast<uint64_t>(effect.key.program),
                    (effect.key.step << 16) | effect.key.microbatch);
        if (status && stage_ && stage_->generation == effect.generation)
          microbatches_.put_data(effect.key, *position);
        act(machine_->on_data(world_.now(), effect.generation, effect.key,
                              status ? Result<uint64_t>(*position) : Result<uint64_t>(fail(status.error()))));
      });
}

void PeerHost::offer(const peer::OfferBlobs& effect) {
  const auto missing = std::make_shared<std::vector<Digest>>();
  transfers_.request(
      100 + 32 * static_cast<int64_t>(effect.blobs.size()), 0,
      [this, effect, missing]() -> PeerLine::Answer {
        *missing = broker_.missing(effect.blobs, effect.durable);
        return {};
      },
      [this, effect, missing](const Status& status) {
        world_.note(What::Offered, options_.node, effect.upload, status ? missing->size() : 999);
        act(machine_->on_missing(world_.now(), effect.upload,
                                 status ? Result<std::vector<Digest>>(*missing)
                                        : Result<std::vector<Digest>>(fail(status.error()))));
      });
}

void PeerHost::upload(const peer::UploadBlob& effect) {
  const auto held = blobs_.size(effect.sha256);
  if (!held) return world_.fail("a blob is to be uploaded that is not here");
  const int64_t size = *held;
  transfers_.request(
      size, effect.rate,
      [this, effect, size]() -> PeerLine::Answer {
        return {broker_.put_blob(effect.sha256, size, effect.durable), 100};
      },
      [this, effect](const Status& status) {
        world_.note(What::Uploaded, options_.node, value_of(effect.sha256), status.has_value());
        act(machine_->on_uploaded(world_.now(), effect.upload, effect.sha256, status));
      });
}

}  // namespace weft::sim
