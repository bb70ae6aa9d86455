// The part of PeerService that carries out what the stage's machine decides.
#include "peer/service/peer_stage.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "storage/blob_store.h"

namespace weft::peer {

using proto::Message;
using proto::ProgramKind;

namespace {
constexpr size_t kFetchesAtOnce = 8;
constexpr uint32_t kFetchAttemptsMax = 5;
constexpr uint64_t kTensorBytesMax = uint64_t{64} << 30;
}  // namespace

std::function<void(std::function<void()>)> PeerService::on_loop_for_stage() {
  return [this, generation = generation_](std::function<void()> work) {
    loop_.post([this, generation, work = std::move(work)] {
      if (stage_ && generation == generation_) work();
    });
  };
}

void PeerService::load_stage(std::shared_ptr<const proto::AssignStage> assignment) {
  ++generation_;
  stage_ = std::make_unique<Stage>(std::move(assignment));
  LinkOptions options;
  options.loop = &loop_;
  options.identity = options_.identity;
  options.relay = options_.broker;
  options.shape = options_.shape;
  const auto later = on_loop_for_stage();
  stage_->links = std::make_unique<Links>(
      options, stage_->assignment,
      Links::Handlers{.on_all_up =
                          [this, later] {
                            later([this] {
                              stage_->links_up = true;
                              report_ready();
                            });
                          },
                      .on_down =
                          [this, later](uint32_t stage, const Error& error) {
                            later([this, stage, error] {
                              fail_stage(error.within("link to stage " + std::to_string(stage + 1)), stage);
                            });
                          },
                      .on_tensor = [this](uint32_t stage,
                                          const proto::TensorFrame& tensor) { on_tensor(stage, tensor); }});
  stage_->links->start();
  match_arrivals();
  std::set<Digest> wanted;
  for (const proto::TensorReference& tensor : stage_->assignment->tensors) wanted.insert(tensor.sha256);
  stage_->to_fetch.assign(wanted.begin(), wanted.end());
  fetch_tensors();
}

void PeerService::drop_stage(const std::string& reason) {
  (void)reason;
  if (!stage_) return;
  ++generation_;
  const std::shared_ptr<Stage> old = std::move(stage_);
  // The executors' memory goes where it was taken, after the task at hand.
  if (compute_) compute_->post([runner = std::move(old->runner)]() mutable { runner.reset(); });
  loop_.post([old] {});  // callbacks of its links may be on the stack
}

void PeerService::fetch_tensors() {
  Stage& stage = *stage_;
  if (stage.failed) return;
  while (!stage.to_fetch.empty() && stage.fetching < kFetchesAtOnce) {
    const Digest sha256 = stage.to_fetch.back();
    stage.to_fetch.pop_back();
    ++stage.fetching;
    open_bulk();
    transfers_->get(
        sha256, kTensorBytesMax,
        [this, sha256, later = on_loop_for_stage()](Result<std::vector<std::byte>> bytes) {
          later([this, sha256, bytes = std::make_shared<Result<std::vector<std::byte>>>(std::move(bytes))] {
            --stage_->fetching;
            if (*bytes) {
              stage_->blobs[sha256] = std::move(**bytes);
            } else {
              if (++stage_->fetch_failures > kFetchAttemptsMax)
                return fail_stage(bytes->error().within("fetching the stage's tensors"));
              stage_->to_fetch.push_back(sha256);
            }
            fetch_tensors();
          });
        });
  }
  if (stage.to_fetch.empty() && stage.fetching == 0) make_runner();
}

void PeerService::make_runner() {
  const auto blobs = std::make_shared<std::map<Digest, std::vector<std::byte>>>(std::move(stage_->blobs));
  compute_->post([this, assignment = stage_->assignment, blobs, later = on_loop_for_stage()] {
    auto made = StageRunner::create(
        assignment,
        [&](const proto::TensorReference& reference) -> Result<dag::Tensor> {
          const auto& bytes = blobs->at(reference.sha256);
          if (static_cast<int64_t>(bytes.size()) != reference.spec.bytes().value)
            return fail(ErrorCode::InvalidArgument, "the tensor of '" + reference.initializer + "' has " +
                                                        std::to_string(bytes.size()) + " bytes, " +
                                                        dag::to_string(reference.spec) + " has others");
          return dag::Tensor(reference.spec, bytes);
        },
        *backend_);
    blobs->clear();
    const auto result = std::make_shared<Result<std::unique_ptr<StageRunner>>>(std::move(made));
    // When the stage has gone meanwhile, the runner goes with the last holder: on this thread.
    const auto runner = *result ? std::shared_ptr<StageRunner>(std::move(**result)) : nullptr;
    const std::optional<Error> error = *result ? std::nullopt : std::optional(result->error());
    later([this, runner, error] {
      if (error) return fail_stage(*error);
      stage_->runner = runner;
      report_ready();
    });
  });
}

void PeerService::report_ready() {
  if (!stage_->links_up || !stage_->runner || stage_->ready || stage_->failed) return;
  stage_->ready = true;
  tell(proto::StageReady{stage_->assignment->run, stage_->assignment->plan_version,
                         stage_->runner->persistent_bytes(), stage_->runner->microbatch_bytes()});
}

void PeerService::fail_stage(const Error& error, std::optional<uint32_t> unreachable, bool permanent) {
  if (!stage_ || stage_->failed) return;
  stage_->failed = true;
  log("warning stage_failed run=" + std::to_string(stage_->assignment->run) + " reason=\"" + error.message +
      "\"");
  tell(proto::StageFailed{.run = stage_->assignment->run,
                          .plan_version = stage_->assignment->plan_version,
                          .error = error,
                          .unreachable_stage = unreachable,
                          .permanent = permanent});
}

void PeerService::on_stage_message(const Message& message) {
  if (!stage_ || stage_->failed) return;
  const auto is_mine = [&](const auto& m) {
    return m.run == stage_->assignment->run && m.plan_version == stage_->assignment->plan_version;
  };
  Status status;
  if (const auto* command = std::get_if<proto::Command>(&message)) {
    if (!is_mine(*command)) return;
    status = stage_->ready ? stage_->machine.on_command(*command)
                           : fail(ErrorCode::InvalidArgument, "a command before the stage was ready");
  } else if (const auto* norm = std::get_if<proto::GradientNorm>(&message)) {
    if (!is_mine(*norm)) return;
    status = stage_->machine.on_norm(*norm);
  } else if (const auto* invitation = std::get_if<proto::RelayInvitation>(&message)) {
    if (is_mine(*invitation)) stage_->links->on_invitation(invitation->ticket);
    return;
  }
  if (!status) return fail_stage(status.error().within("the broker breaks the protocol"));
  pump();
}

void PeerService::on_tensor(uint32_t from_stage, const proto::TensorFrame& tensor) {
  if (!stage_ || stage_->failed) return;
  const proto::TensorHeader& header = tensor.header;
  if (header.run != stage_->assignment->run || header.plan_version != stage_->assignment->plan_version)
    return;
  const Status status = stage_->machine.on_tensor(from_stage, header);
  if (!status)
    return fail_stage(
        status.error().within("stage " + std::to_string(from_stage + 1) + " breaks the protocol"),
        from_stage);
  const proto::StageProgram& program = stage_->program(header.program);
  for (uint32_t r = 0; r < program.receives.size(); ++r)
    if (program.receives[r].edge == header.edge)
      stage_->tensors[{header.program, header.step, header.microbatch}][r] =
          dag::Tensor(header.spec, tensor.bytes);
  pump();
}

void PeerService::pump() {
  if (!stage_ || !stage_->ready || stage_->failed) return;
  Stage& stage = *stage_;
  for (const MicrobatchKey& key : stage.machine.fetches()) fetch_data(key);
  for (Message& report : stage.machine.take_reports()) {
    if (auto* step = std::get_if<proto::StepReport>(&report); step != nullptr && step->updated)
      step->links = stage.links->take_use();
    tell(report);
  }
  for (const MicrobatchKey& key : stage.machine.take_finished()) {
    stage.tensors.erase(key);
    stage.data.erase(key);
  }
  if (const auto task = stage.machine.next_task(loop_.now())) run_task(*task);
}

void PeerService::fetch_data(const MicrobatchKey& key) {
  open_bulk();
  proto::GetMicrobatch request{.run = stage_->assignment->run,
                               .data_key = stage_->assignment->data_key,
                               .program = key.program,
                               .step = key.step,
                               .microbatch = key.microbatch,
                               .inputs = stage_->program(key.program).data_inputs};
  transfers_->get_microbatch(std::move(request), [this, key, later = on_loop_for_stage()](
                                                     Result<BulkTransfers::Microbatch> result) {
    later([this, key, result = std::make_shared<Result<BulkTransfers::Microbatch>>(std::move(result))] {
      if (!*result) {
        // The data itself is wrong for every peer; a connection that broke is not.
        const ErrorCode code = result->error().code;
        const bool permanent = code == ErrorCode::OutOfRange || code == ErrorCode::Corrupted;
        return fail_stage(result->error().within("data of step " + std::to_string(key.step)), {}, permanent);
      }
      stage_->data[key] = std::move(**result);
      const Status status = stage_->machine.on_data(key);
      if (!status) return fail_stage(status.error());
      pump();
    });
  });
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
  compute_->post([this, task, inputs, runner = stage.runner, later = on_loop_for_stage()]() mutable {
    const auto began = std::chrono::steady_clock::now();
    auto output = std::make_shared<Result<StageRunner::Output>>(runner->run(task, *inputs));
    if (*output) (*output)->outcome.busy = std::chrono::steady_clock::now() - began;
    inputs.reset();
    runner.reset();
    later([this, task, output] { on_task_done(task, std::move(*output)); });
  });
}

void PeerService::on_task_done(const Task& task, Result<StageRunner::Output> output) {
  if (stage_->failed) return;
  if (!output) return fail_stage(output.error());
  const proto::StageProgram& program = stage_->program(task.key.program);
  for (auto& [index, tensor] : output->sends) {
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
  if (task.kind == TaskKind::Snapshot) upload(task, std::move(output->snapshot), /*prediction=*/false);
  if (!output->predictions.empty()) upload(task, std::move(output->predictions), /*prediction=*/true);
  stage_->machine.on_task_done(loop_.now(), task, output->outcome);
  pump();
}

// Hashes beside the next tasks, asks what the broker lacks, sends that, and reports once all of it is stored
// there.
void PeerService::upload(const Task& task, std::vector<StageRunner::Output::Named> tensors, bool prediction) {
  using Named = StageRunner::Output::Named;
  const auto named = std::make_shared<std::vector<Named>>(std::move(tensors));
  upload_->post([this, task, prediction, named, later = on_loop_for_stage()] {
    const auto references = std::make_shared<std::vector<proto::TensorReference>>();
    for (const Named& entry : *named)
      references->push_back(
          {entry.name, entry.slot, entry.tensor.spec(), storage::sha256(entry.tensor.bytes())});
    later([this, task, prediction, named, references, later] {
      std::set<Digest> unique;
      for (const auto& reference : *references) unique.insert(reference.sha256);
      const auto report = [this, task, prediction, references] {
        const auto& assignment = *stage_->assignment;
        if (prediction)
          tell(proto::PredictionReport{assignment.run, assignment.plan_version, task.key.microbatch,
                                       *references});
        else
          tell(proto::CheckpointReport{assignment.run, assignment.plan_version, task.key.step, *references});
      };
      open_bulk();
      transfers_->missing({unique.begin(), unique.end()}, [this, named, references, later,
                                                           report](Result<std::vector<Digest>> missing) {
        later([this, named, references, later, report, missing = std::move(missing)] {
          if (!missing) return fail_stage(missing.error().within("uploading"));
          const auto left = std::make_shared<size_t>(missing->size());
          if (*left == 0) return report();
          for (const Digest& sha256 : *missing) {
            const auto at = std::find_if(references->begin(), references->end(),
                                         [&](const auto& reference) { return reference.sha256 == sha256; });
            if (at == references->end())
              return fail_stage({ErrorCode::InvalidArgument, "the broker lacks what it was not offered"});
            const Named& entry = (*named)[static_cast<size_t>(at - references->begin())];
            open_bulk();
            transfers_->put(sha256, {named, entry.tensor.bytes()},
                            [this, later, left, report](Status stored) {
                              later([this, left, report, stored = std::move(stored)] {
                                if (!stored) return fail_stage(stored.error().within("uploading"));
                                if (--*left == 0) report();
                              });
                            });
          }
        });
      });
    });
  });
}

}  // namespace weft::peer
