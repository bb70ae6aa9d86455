// The part of PeerService that carries out what concerns the stage: links, executors, tasks.
#include "peer/service/peer_stage.h"

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
  LinkOptions options;
  options.loop = &loop_;
  options.identity = options_.identity;
  options.relay = options_.broker;
  options.shape = options_.shape;
  const auto later = on_loop_for_stage();
  const uint64_t generation = open.generation;
  stage_->links = std::make_unique<Links>(
      options, open.assignment,
      Links::Handlers{.on_all_up =
                          [this, later, generation] {
                            later([this, generation] {
                              carry_out(peer_->on_links_up(loop_.now(), generation));
                            });
                          },
                      .on_down =
                          [this, later, generation](uint32_t stage, const Error& error) {
                            later([this, generation, stage, error] {
                              carry_out(peer_->on_link_failed(loop_.now(), generation, stage, error));
                            });
                          },
                      .on_tensor =
                          [this, generation](uint32_t stage, const proto::TensorFrame& tensor) {
                            if (stage_ && stage_->generation == generation) on_tensor(stage, tensor);
                          }});
  stage_->links->start();
  match_arrivals();
}

// Callbacks of its links may be on the stack: they go a little later.
void PeerService::close_links() {
  if (!stage_) return;
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
  if (stage_ && compute_) compute_->post([runner = std::move(stage_->runner)]() mutable { runner.reset(); });
}

void PeerService::on_tensor(uint32_t from_stage, const proto::TensorFrame& tensor) {
  const proto::TensorHeader& header = tensor.header;
  bool accepted = false;
  PeerEffects effects = peer_->on_tensor(loop_.now(), stage_->generation, from_stage, header, accepted);
  if (accepted) {
    const proto::StageProgram& program = stage_->program(header.program);
    for (uint32_t r = 0; r < program.receives.size(); ++r)
      if (program.receives[r].edge == header.edge)
        stage_->tensors[{header.program, header.step, header.microbatch}][r] =
            dag::Tensor(header.spec, tensor.bytes);
  }
  carry_out(std::move(effects));
}

void PeerService::run_task(const Task& task) {
  Stage& stage = *stage_;
  auto inputs = std::make_shared<StageRunner::Inputs>();
  if (task.kind == TaskKind::Segment) {
    const proto::StageProgram& program = stage.program(task.key.program);
    if (const auto arrived = stage.tensors.find(task.key); arrived != stage.tensors.end())
      for (auto at = arrived->second.begin(); at != arrived->second.end();) {
        const auto producer = program.graph->value(program.receives[at->first].value).producer;
        if (program.segment_of_op[producer.index] == task.segment) {
          inputs->received.emplace_back(at->first, std::move(at->second));
          at = arrived->second.erase(at);
        } else {
          ++at;
        }
      }
    if (const auto data = stage.data.find(task.key); data != stage.data.end()) {
      inputs->data = data->second.tensors;
      inputs->sample_position = static_cast<int64_t>(data->second.sample_position);
    }
  }
  compute_->post([this, task, inputs, runner = stage.runner, dropped = stage.dropped,
                  later = on_loop_for_stage()]() mutable {
    if (*dropped) return;
    auto output = std::make_shared<Result<StageRunner::Output>>(runner->run(task, *inputs));
    inputs.reset();
    runner.reset();
    later([this, task, output] { on_task_done(task, std::move(*output)); });
  });
}

void PeerService::on_task_done(const Task& task, Result<StageRunner::Output> output) {
  const uint64_t generation = stage_->generation;
  if (!output) return carry_out(peer_->on_task_done(loop_.now(), generation, task, fail(output.error())));
  send_outputs(task, std::move(output->sends));
  if (task.kind == TaskKind::Snapshot) hash(task, std::move(output->snapshot));
  if (!output->predictions.empty()) hash(task, std::move(output->predictions));
  carry_out(peer_->on_task_done(loop_.now(), generation, task, output->outcome));
}

void PeerService::send_outputs(const Task& task, std::vector<std::pair<uint32_t, dag::Tensor>> sends) {
  const proto::StageProgram& program = stage_->program(task.key.program);
  for (auto& [index, tensor] : sends) {
    const proto::EdgeEnd& end = program.sends[index];
    const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
    stage_->links->send(end.stage, tensor_frame({.run = stage_->assignment->run,
                                                 .plan_version = stage_->assignment->plan_version,
                                                 .step = task.key.step,
                                                 .microbatch = task.key.microbatch,
                                                 .edge = end.edge,
                                                 .program = task.key.program,
                                                 .direction = backward ? proto::Direction::Backward
                                                                       : proto::Direction::Forward,
                                                 .replica = 0,
                                                 .spec = tensor.spec()},
                                                tensor));
  }
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
