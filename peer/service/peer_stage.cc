// The part of PeerService that carries out what concerns the stage: links, executors, tasks.
#include "peer/service/peer_stage.h"

#include "peer/backend/host/host_memory.h"
#include "storage/blob_store.h"

namespace weft::peer {

std::function<void(std::function<void()>)> PeerService::on_loop_for_stage() {
  return [this, generation = stage_->generation](std::function<void()> work) {
    loop_.post([this, generation, work = std::move(work)] {
      if (stage_ && generation == stage_->generation) work();
    });
  };
}

void PeerService::open_links(const OpenLinks& open) {
  stage_ = std::make_shared<Stage>(open.assignment, open.generation);
  links_->open(open.generation, open.assignment);
}

// It may be in use on the stack: it goes a little later.
void PeerService::close_links() {
  if (!stage_) return;
  links_->close();
  loop_.post([old = std::move(stage_)] {});
  stage_.reset();
}

void PeerService::make_runner(const MakeRunner& make) {
  const auto blobs = std::make_shared<std::map<Digest, net::SharedBytes>>();
  for (const proto::TensorReference& tensor : make.assignment->tensors)
    if (const auto at = blobs_.find(tensor.sha256); at != blobs_.end()) blobs->insert(*at);
  compute_->post([this, assignment = make.assignment, blobs, later = on_loop_for_stage()] {
    auto made = StageRunner::create(
        assignment,
        [&](const proto::TensorReference& reference) -> Result<dag::Tensor> {
          const auto at = blobs->find(reference.sha256);
          if (at == blobs->end())
            return fail(ErrorCode::Internal, "the tensor of '" + reference.key.name + "' is not here");
          const auto bytes = at->second.bytes;
          if (static_cast<int64_t>(bytes.size()) != reference.spec.bytes().value)
            return fail(ErrorCode::InvalidArgument, "the tensor of '" + reference.key.name + "' has " +
                                                        std::to_string(bytes.size()) + " bytes, " +
                                                        dag::to_string(reference.spec) + " has others");
          return dag::Tensor(reference.spec, bytes);
        },
        *backend_);
    blobs->clear();
    return_freed_memory();
    // When the stage has gone meanwhile, the runner goes with the last holder: on this thread.
    const auto runner = made ? std::shared_ptr<StageRunner>(std::move(*made)) : nullptr;
    const std::optional<Error> error = made ? std::nullopt : std::optional(made.error());
    later([this, runner, error] {
      if (error) return carry_out(peer_->on_runner_made(loop_.now(), stage_->generation, fail(*error)));
      stage_->runner = runner;
      carry_out(peer_->on_runner_made(loop_.now(), stage_->generation,
                                      RunnerSize{runner->persistent_bytes(), runner->microbatch_bytes()}));
    });
  });
}

// The executors' memory goes where it was taken, after the task at hand.
void PeerService::drop_runner() {
  if (transfers_) transfers_->cancel_puts();
  if (stage_) *stage_->dropped = true;
  if (stage_ && compute_)
    compute_->post([runner = std::move(stage_->runner)]() mutable {
      runner.reset();
      return_freed_memory();
    });
}

void PeerService::on_tensor(uint32_t from_stage, const proto::TensorHeader& header, dag::Tensor tensor) {
  bool accepted = false;
  PeerEffects effects = peer_->on_tensor(loop_.now(), stage_->generation, from_stage, header, accepted);
  if (accepted) stage_->inbox.keep(header, std::move(tensor));
  carry_out(std::move(effects));
}

namespace {
// On the compute thread: what a task made is on its way before the machine hears that it has run.
void send_outputs(const proto::AssignStage& assignment, uint64_t generation, const Task& task,
                  std::vector<std::pair<uint32_t, dag::Tensor>> sends, LinkService& links) {
  const proto::StageProgram& program = program_of(assignment, task.key.program);
  for (auto& [index, tensor] : sends) {
    const proto::EdgeEnd& end = program.sends[index];
    const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
    links.send(generation, end.stage,
               tensor_frame({.run = assignment.run,
                             .plan_version = assignment.plan_version,
                             .step = task.key.step,
                             .microbatch = task.key.microbatch,
                             .edge = end.edge,
                             .program = task.key.program,
                             .direction = backward ? proto::Direction::Backward : proto::Direction::Forward,
                             .replica = 0,
                             .spec = tensor.spec()},
                            tensor));
  }
}
}  // namespace

void PeerService::run_task(const Task& task) {
  const Stage& stage = *stage_;
  auto inputs = std::make_shared<StageRunner::Inputs>(stage_->inbox.take(task));
  compute_->post([this, task, inputs, runner = stage.runner, dropped = stage.dropped,
                  assignment = stage.assignment, generation = stage.generation,
                  later = on_loop_for_stage()]() mutable {
    if (*dropped) return;
    const Instant began = loop_.now();
    auto output = std::make_shared<Result<StageRunner::Output>>(runner->run(task, *inputs));
    const Instant ended = loop_.now();
    if (options_.on_task) options_.on_task(task, began, ended);
    if (*output) {
      send_outputs(*assignment, generation, task, std::move((*output)->sends), *links_);
    }
    inputs.reset();
    runner.reset();
    later([this, task, output] { on_task_done(task, std::move(*output)); });
  });
}

void PeerService::on_task_done(const Task& task, Result<StageRunner::Output> output) {
  const uint64_t generation = stage_->generation;
  if (!output) return carry_out(peer_->on_task_done(loop_.now(), generation, task, fail(output.error())));
  if (task.kind == TaskKind::Snapshot) hash(task, std::move(output->snapshot));
  if (!output->predictions.empty()) hash(task, std::move(output->predictions));
  carry_out(peer_->on_task_done(loop_.now(), generation, task, output->outcome));
}

// Beside the next tasks.
void PeerService::hash(const Task& task, std::vector<StageRunner::Output::Named> tensors) {
  using Named = StageRunner::Output::Named;
  const auto named = std::make_shared<std::vector<Named>>(std::move(tensors));
  upload_->post([this, task, named, later = on_loop_for_stage()] {
    const auto references = std::make_shared<std::vector<proto::TensorReference>>();
    for (const Named& entry : *named)
      references->push_back({entry.key, entry.tensor.spec(), storage::sha256(entry.tensor.bytes())});
    later([this, task, named, references] {
      for (size_t i = 0; i < named->size(); ++i) {
        // Each tensor by itself, so that those which change from step to step can go.
        const auto tensor = std::make_shared<const dag::Tensor>((*named)[i].tensor);
        blobs_.try_emplace((*references)[i].sha256, net::SharedBytes{tensor, tensor->bytes()});
      }
      carry_out(peer_->on_hashed(loop_.now(), stage_->generation, task, *references));
    });
  });
}

}  // namespace weft::peer
