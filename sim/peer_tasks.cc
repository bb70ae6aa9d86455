#include "sim/peer_tasks.h"

#include <algorithm>

namespace weft::sim {

using std::chrono::milliseconds;

namespace {
bool is_fed_by_others(peer::TaskKind kind) {
  return kind == peer::TaskKind::Mean || kind == peer::TaskKind::Weigh || kind == peer::TaskKind::Agree ||
         kind == peer::TaskKind::Reduce || kind == peer::TaskKind::Gather;
}
}  // namespace

bool PeerTasks::are_here(const proto::AssignStage& assignment) const {
  return std::all_of(assignment.tensors.begin(), assignment.tensors.end(),
                     [&](const auto& tensor) { return shell_.blobs.has(tensor.sha256); });
}

// Its hashes were in the assignment; that it has them from now on is what counts.
void PeerTasks::load_runner(const peer::LoadRunner& effect) {
  if (!are_here(*effect.assignment))
    return shell_.world.fail("a follower is to be loaded with a tensor that is not here");
  const Instant loaded =
      device_.work(shell_.world.now(), shell_.draw.between(milliseconds(5), milliseconds(200)));
  shell_.later(loaded - shell_.world.now(), [this, effect] {
    if (shell_.has_stage(effect.generation)) loaded_ = effect.generation;
    shell_.act(shell_.machine->on_runner_made(shell_.world.now(), effect.generation,
                                              peer::RunnerSize{{1000}, {1000}}));
  });
}

void PeerTasks::make_runner(const peer::MakeRunner& effect) {
  if (!is_follower(*effect.assignment) && !are_here(*effect.assignment))
    return shell_.world.fail("a runner is to be made from a tensor that is not here");
  shell_.begin_stage(effect.generation, effect.assignment);
  const Instant made =
      device_.work(shell_.world.now(), shell_.draw.between(milliseconds(5), milliseconds(200)));
  shell_.later(made - shell_.world.now(), [this, effect] {
    shell_.world.note(What::Runner, shell_.options.node, effect.assignment->run,
                      effect.assignment->plan_version);
    if (shell_.has_stage(effect.generation)) {
      shell_.stage->runner = std::make_shared<HashRunner>(effect.assignment, shell_.options.bug);
      if (const auto liar = shell_.options.liar)
        shell_.stage->runner->distort_means([liar] { return liar->spoils_means(); });
      shell_.checkers.on_stage_loaded(*effect.assignment);
    }
    shell_.act(shell_.machine->on_runner_made(shell_.world.now(), effect.generation,
                                              peer::RunnerSize{{1000}, {1000}}));
  });
}

void PeerTasks::run(const peer::RunTask& effect) {
  if (!shell_.has_stage(effect.generation) || !shell_.stage->runner)
    return shell_.world.fail("a task without a runner");
  if (effect.task.kind == peer::TaskKind::Snapshot && is_follower(*shell_.stage->assignment) &&
      loaded_ != effect.generation)
    return shell_.world.fail("a snapshot of a follower that has nothing yet");
  const auto runner = shell_.stage->runner;
  HashRunner::Inputs inputs;
  if (effect.task.kind == peer::TaskKind::Segment) {
    if (auto* arrived = shell_.microbatches.tensors(effect.task.key))
      for (auto at = arrived->begin(); at != arrived->end();) {
        if (at->first >= runner->program(effect.task.key.program).receives.size())
          return shell_.world.fail("peer " + std::to_string(shell_.options.node) +
                                   ": a tensor that is not for this stage");
        if (!runner->reads(effect.task, at->first)) {
          ++at;
          continue;
        }
        shell_.checkers.on_tensor_used(*shell_.stage->assignment, at->second.header);
        inputs.received.emplace_back(at->first, at->second.value);
        at = arrived->erase(at);
      }
    if (const auto data = shell_.microbatches.data(effect.task.key)) inputs.sample_position = data;
  }
  const bool agrees = effect.task.kind == peer::TaskKind::Differ || is_fed_by_others(effect.task.kind);
  if (is_fed_by_others(effect.task.kind))
    inputs.agreed = shell_.agreed.take(*shell_.stage->assignment, effect.task);
  const JobSpec* spec = shell_.checkers.spec_of(shell_.stage->assignment->run);
  const auto cost =
      static_cast<uint64_t>(spec != nullptr ? spec->op.count() : 1'000'000) * runner->work(effect.task);
  const Duration busy(
      static_cast<Duration::rep>(cost * 1000 / shell_.options.speed * shell_.draw.between(95, 115) / 100));
  const Instant done = device_.work(shell_.world.now(), busy);
  shell_.later(done - shell_.world.now(), [this, effect, runner, inputs = std::move(inputs), busy] {
    finish(effect, runner, inputs, busy);
  });
  if (agrees && shell_.options.at_agreement) shell_.options.at_agreement();
}

void PeerTasks::ask_device() {
  shell_.later(std::max(device_.free() - shell_.world.now(), Duration{}),
               [this] { shell_.act(shell_.machine->on_device(shell_.world.now(), {})); });
}

void PeerTasks::finish(const peer::RunTask& effect, const std::shared_ptr<HashRunner>& runner,
                       const HashRunner::Inputs& inputs, Duration busy) {
  const peer::Task& task = effect.task;
  shell_.world.note(What::TaskDone, shell_.options.node,
                    (static_cast<uint64_t>(task.kind) << 8) | task.segment,
                    (task.key.step << 16) | task.key.microbatch);
  auto output = runner->run(task, inputs);
  if (!output)
    return shell_.world.fail("peer " + std::to_string(shell_.options.node) + ": " + output.error().message);
  output->outcome.busy = busy;
  const bool current = shell_.has_stage(effect.generation) && shell_.stage->runner == runner;
  if (current && shell_.stage->links && !output->sends.empty()) {
    const proto::StageProgram& program = runner->program(task.key.program);
    for (const auto& [index, value] : output->sends) {
      if (shell_.options.liar && shell_.options.liar->withholds_tensor()) continue;
      const proto::EdgeEnd& end = program.sends[index];
      const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
      shell_.stage->links->send(
          other_end(end, shell_.stage->assignment->seat),
          {.header = {.run = shell_.stage->assignment->run,
                      .plan_version = shell_.stage->assignment->plan_version,
                      .step = task.key.step,
                      .microbatch = task.key.microbatch,
                      .edge = end.edge,
                      .program = task.key.program,
                      .direction = backward ? proto::Direction::Backward : proto::Direction::Forward,
                      .replica = static_cast<uint16_t>(shell_.stage->assignment->seat.replica),
                      .spec = program.graph->spec(end.value),
                      .codec = end.codec},
           .value = value,
           .spoilt = shell_.options.liar && shell_.options.liar->spoils_tensor()});
    }
  }
  if (current && shell_.stage->links && !output->agreed.empty()) send_agreed(task, std::move(output->agreed));
  if (current && task.kind == peer::TaskKind::Agree && task.settles)
    shell_.checkers.on_agreed(*shell_.stage->assignment, task.key.step, *runner);
  if (task.kind == peer::TaskKind::Snapshot)
    hash(effect.generation, task, std::move(output->snapshot), runner);
  if (!output->predictions.empty()) hash(effect.generation, task, std::move(output->predictions), runner);
  shell_.act(shell_.machine->on_task_done(shell_.world.now(), effect.generation, task, output->outcome));
}

void PeerTasks::send_agreed(const peer::Task& task, std::vector<HashAgreement::Sent> sent) {
  for (HashAgreement::Sent& share : sent) {
    if (task.left_out && task.left_out->has(share.to.replica)) continue;
    if (shell_.options.liar && shell_.stage->assignment->local)
      shell_.options.liar->change(share.to, share.packet, *shell_.stage->assignment, task.left_out.get());
    shell_.stage->links->send(share.to, share.packet);
  }
}

void PeerTasks::hash(uint64_t generation, const peer::Task& task, std::vector<HashRunner::Named> named,
                     const std::shared_ptr<HashRunner>& runner) {
  const bool late = shell_.options.bug == Bug::SnapshotLate && task.kind == peer::TaskKind::Snapshot;
  shell_.later(
      late ? Duration(milliseconds(500)) : shell_.draw.between(milliseconds(1), milliseconds(50)),
      [this, generation, task, named = std::move(named), runner, late] {
        shell_.world.note(What::Hashed, shell_.options.node, generation, task.key.step);
        std::vector<proto::TensorReference> tensors;
        for (const auto& entry : late ? runner->state() : named) {
          const Digest digest = digest_of(entry.value);
          tensors.push_back({entry.key, entry.spec, digest});
          shell_.blobs.hold(digest, entry.spec.bytes().value);
        }
        shell_.act(shell_.machine->on_hashed(shell_.world.now(), generation, task, std::move(tensors)));
      });
}

}  // namespace weft::sim
