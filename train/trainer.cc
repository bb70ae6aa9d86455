#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <utility>

#include "dag/finite.h"
#include "dag/loss.h"
#include "dag/onnx/export.h"
#include "dag/onnx/model.h"
#include "dag/slots.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "peer/backend/reference/reference_kernels.h"
#include "storage/checkpoint.h"
#include "storage/files.h"
#include "storage/sha256.h"
#include "train/adapter_files.h"
#include "train/data_check.h"
#include "train/initial_weights.h"
#include "train/kept_checkpoints.h"
#include "train/outer_record.h"
#include "train/outputs.h"
#include "train/prepare.h"
#include "train/replicas_in_turn.h"
#include "train/resumption.h"
#include "train/session.h"
#include "train/told.h"

namespace weft::train {
namespace {

using configs::Job;
using dag::InitializerRole;
using dag::Tensor;
using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Result<storage::CheckpointTensors> read_state(const peer::State& state,
                                              const std::vector<dag::StateKey>& keys) {
  storage::CheckpointTensors tensors;
  for (const dag::StateKey& key : keys) {
    WEFT_TRY(tensors[key], state.read(key));
  }
  return tensors;
}

std::string name_not_finite(const dag::StateKey& key) {
  return "after it '" + to_string(key) + "' is not finite";
}

// Which of them is not finite; empty: all are.
std::string find_not_finite(const storage::CheckpointTensors& tensors) {
  for (const auto& [key, tensor] : tensors)
    if (!dag::is_finite_state(key, tensor)) return name_not_finite(key);
  return {};
}

Status write_state(peer::State& state, const std::vector<dag::StateKey>& keys,
                   const storage::CheckpointTensors& tensors) {
  for (const dag::StateKey& key : keys) {
    const auto at = tensors.find(key);
    if (at == tensors.end())
      return fail(ErrorCode::InvalidArgument, "the checkpoint holds no " + std::string(to_string(key.slot)) +
                                                  " of '" + key.name +
                                                  "': it is of another job or optimizer");
    WEFT_TRY_STATUS(state.write(key, at->second));
  }
  return {};
}

// Weights of the graph that the state holds and training leaves as they are.
std::vector<dag::StateKey> untrained_weights(const dag::Graph& graph,
                                             const std::vector<dag::StateKey>& trained_state,
                                             const peer::State& state) {
  const std::set<dag::StateKey> trained(trained_state.begin(), trained_state.end());
  std::vector<dag::StateKey> keys;
  for (const dag::Initializer& initializer : graph.initializers()) {
    dag::StateKey key = dag::of_initializer(initializer.name);
    if (!trained.contains(key) && state.find(key) != nullptr) keys.push_back(std::move(key));
  }
  return keys;
}

// One run of a job. Members in the order in which they come to be.
class Run {
 public:
  Run(const Job& job, peer::Backend& backend, const TrainOptions& options, const EventSink& sink)
      : job_(job),
        backend_(backend),
        options_(options),
        sink_(sink),
        start_(Clock::now()),
        checkpoints_(job_, files_) {}

  Result<ResultEvent> run() {
    WEFT_TRY_STATUS(check_supported());
    WEFT_TRY_STATUS(check_output(job_, /*with_checkpoints=*/true));
    WEFT_TRY_STATUS(open());
    WEFT_TRY_STATUS(resume());
    announce();
    return loop();
  }

 private:
  Status check_supported() const {
    if (job_.task != configs::Task::Train)
      return fail(job_.error(ErrorCode::Unsupported, "task", "only a job with `task: train` is trained"));
    if (job_.compression.policy != plan::CompressionPolicy::None)
      return fail(job_.error(ErrorCode::Unsupported, "compression",
                             "there is nothing to compress on one machine: use policy: none"));
    if (job_.placement.stages.value_or(1) != 1)
      return fail(job_.error(ErrorCode::Unsupported, "placement.stages",
                             "`weft local` runs one stage: use stages: auto or 1"));
    return check_precision(job_, backend_);
  }

  Status open() {
    if (!options_.replay.empty() && job_.leaves_rounds_open()) {
      WEFT_TRY(const auto replayed, storage::read_outer_record(options_.replay));
      WEFT_TRY(job_, job_.with_chosen_rounds(replayed.sync));
    }
    WEFT_TRY(dataset_, data::open_dataset(*job_.train));
    if (job_.test) {
      WEFT_TRY(test_, data::open_dataset(*job_.test));
    }
    WEFT_TRY(total_steps_, job_.total_steps(dataset_->sample_count()));
    WEFT_TRY(std::optional<onnx::OnnxModel> model, read_job_model(job_, model_.initial));
    if (model_.initial) told_.add(model_.initial->warnings(), {model_.initial->note()});
    const bool automatic = job_.microbatch_size == 0;
    WEFT_TRY(job_, with_largest_microbatch(job_, *model));
    WEFT_TRY(Prepared training, prepare_training(job_, *model, *dataset_, peer::evaluate_reference));
    told_.add(training.warnings, training.notes);
    model_.adapters = training.adapters;
    if (automatic)
      told_.warnings.push_back(
          "microbatch_size: auto is " + std::to_string(job_.microbatch_size) +
          " here, where nobody plans; a broker may choose another, and then bits differ");
    if (std::string text = warn_of_room(job_); !text.empty()) told_.warnings.push_back(std::move(text));
    graph_hash_ = storage::sha256_hex(training.identity);
    std::optional<Prepared> evaluation;
    if (test_) {  // both are prepared before anything starts, so that what cannot be evaluated is said now
      WEFT_TRY(evaluation, prepare_evaluation(job_, *model, *test_, peer::evaluate_reference));
    }
    WEFT_TRY_STATUS(look_at(DataUse::Train, *dataset_, training));
    if (evaluation) WEFT_TRY_STATUS(look_at(DataUse::Test, *test_, *evaluation));
    model.reset();  // the file's bytes are not needed beside the executor's memory
    state_ = std::make_shared<peer::State>(backend_);
    WEFT_TRY(session_, TrainingSession::create(std::move(training), job_, state_));
    trained_state_ = dag::trained_state(session_->executor().graph(), job_.optimizer);
    untrained_ = untrained_weights(session_->executor().graph(), trained_state_, *state_);
    if (evaluation) {
      WEFT_TRY(evaluation_, EvaluationSession::create(std::move(*evaluation), job_, state_));
    }
    if (checkpoints_.are_wanted()) {
      WEFT_TRY_STATUS(checkpoints_.open());
      hash_what_is_read();  // now, for the files may change
    }
    return open_replicas();
  }

  // With local steps.
  Status open_replicas() {
    if (!job_.replicas.are_local()) {
      if (options_.replay.empty()) return {};
      return fail(job_.error(ErrorCode::InvalidArgument, "sync",
                             "--replay makes the rounds of replicas again, and this job has none: sync: "
                             "{every: N}"));
    }
    ReplicasInTurn::Options options{.steps = total_steps_};
    if (!options_.replay.empty()) {
      WEFT_TRY(const auto replayed, read_record_of(options_.replay, job_, graph_hash_, total_steps_));
      options.replayed = replayed.rounds;
    }
    WEFT_TRY(replicas_, ReplicasInTurn::create(job_, trained_state_, state_, std::move(options)));
    told_.notes.push_back(describe_replicas(job_.replicas));
    return {};
  }

  // What was recorded of the steps before the first one goes before what comes.
  Status begin_record() {
    if (!replicas_) return {};
    storage::OuterRecord record = record_of(job_, graph_hash_);
    if (const auto before = read_record_of(record_file(job_), job_, graph_hash_, UINT64_MAX);
        before && first_step_ > 1)
      for (const replicas::OuterRound& round : before->rounds)
        if (round.steps_after() < first_step_) record.rounds.push_back(round);
    return record_.begin(record_file(job_), record);
  }

  // All of the data, so that no step stops at a row of it.
  Status look_at(DataUse use, const data::Dataset& dataset, const Prepared& prepared) {
    WEFT_TRY(const auto said, check_data(job_, use, dataset, prepared, options_.stop));
    const uint64_t count = dataset.sample_count();
    for (const auto& notes :
         {said, use == DataUse::Train ? sample_notes(job_, count) : test_notes(job_, prepared, count)})
      told_.add(notes, {});
    return {};
  }

  // What decides the bits: the device's fingerprint, and the precision of products where it is not float32.
  std::string numerics() const {
    std::string text = backend_.numerics_fingerprint();
    if (job_.arithmetic != dag::Arithmetic::F32) text += ", " + std::string(to_string(job_.arithmetic));
    return text;
  }

  Status resume() {
    if (options_.resume.empty()) return {};
    WEFT_TRY(const storage::LoadReport loaded, storage::load_checkpoint(options_.resume, files_));
    const storage::Checkpoint& checkpoint = loaded.checkpoint;
    for (const Error& error : loaded.passed_over)
      told_.warnings.push_back("passed over a damaged checkpoint: " + error.message);
    WEFT_TRY(const auto told, check_continuation({job_, graph_hash_, total_steps_, options_.other_data},
                                                 checkpoint, loaded.manifest.string(), [this] {
                                                   hash_what_is_read();
                                                   return *read_hashes_;
                                                 }));
    if (checkpoint.numerics != numerics())
      told_.warnings.push_back("the checkpoint was computed by '" + checkpoint.numerics +
                               "': equal bits are no longer promised");
    told_.add(told, {});
    WEFT_TRY_STATUS(write_state(*state_, trained_state_, checkpoint.tensors));
    session_->set_skipped_steps(checkpoint.skipped_steps);
    first_step_ = checkpoint.step + 1;
    return resume_replicas(checkpoint);
  }

  Status resume_replicas(const storage::Checkpoint& checkpoint) {
    if (replicas_) {
      WEFT_TRY(std::string said, replicas_->resume(checkpoint));
      if (!said.empty()) told_.warnings.push_back(std::move(said));
    } else if (!checkpoint.replica_updates.empty()) {
      // As many updates as the slots have seen.
      session_->set_skipped_steps(checkpoint.step - checkpoint.replica_updates.front());
      told_.warnings.push_back("the checkpoint has the optimizer's state of " +
                               std::to_string(checkpoint.replica_updates.size()) +
                               " replicas: this run goes on with that of the first");
    }
    return {};
  }

  storage::RunSettings settings_after(uint64_t step) {
    hash_what_is_read();
    return settings_of(job_, total_steps_, *read_hashes_, step);
  }

  // Once. What cannot be read any more is not told: a checkpoint without it is better than none.
  void hash_what_is_read() {
    if (read_hashes_) return;
    read_hashes_ = ReadHashes{.data = hash_of_data(*job_.train).value_or(""),
                              .untrained = hash_of_untrained().value_or("")};
  }

  Result<std::string> hash_of_untrained() const {
    storage::Sha256 all;
    for (const dag::StateKey& key : untrained_) {
      WEFT_TRY(const Tensor tensor, state_->read(key));
      all.update(to_string(key) + " " + to_string(tensor.spec()) + "\n");
      all.update(tensor.bytes());
    }
    return all.hex();
  }

  void announce() {
    StartEvent event;
    event.first_step = first_step_;
    event.steps = total_steps_;
    event.sample_count = dataset_->sample_count();
    event.batch_size = job_.batch_size;
    peer::Executor& executor = session_->executor();
    event.parameter_tensors = executor.parameters().size();
    for (const auto& parameter : executor.parameters())
      event.parameter_elements += parameter.spec.element_count();
    for (const auto& initializer : executor.graph().initializers())
      event.frozen_tensors += initializer.role == InitializerRole::Frozen;
    event.persistent = state_->bytes() + executor.persistent_bytes();
    event.microbatch = executor.scratch_bytes() + executor.microbatch_bytes();
    event.fingerprint = numerics();
    event.warnings = told_.warnings;
    event.notes = told_.notes;
    sink_(event);
  }

  Result<ResultEvent> loop() {
    data::SampleSequence sequence(dataset_->sample_count(), job_.shuffle, job_.seed);
    data::Loader loader(
        dataset_, session_->feeds(),
        data::training_requests(std::move(sequence), first_step_, total_steps_, job_.batch_size,
                                job_.microbatch_size, replicas_ ? replicas_->samples_of() : nullptr),
        {.divisors = session_->divisors(), .loss_terms = job_.losses.size(), .on_start = [this] {
           backend_.release_calling_thread();
         }});
    WEFT_TRY_STATUS(begin_record());
    checkpoints_.begin();
    Clock::time_point last = Clock::now();
    uint64_t looked_at = first_step_ - 1;  // the step after which the run could be evaluated and kept
    for (uint64_t step = first_step_; step <= total_steps_; ++step) {
      WEFT_TRY(const StepPlace place,
               replicas_ ? replicas_->before(step) : Result<StepPlace>(session_->place_of(step)));
      WEFT_TRY(const auto result, session_->step(place, total_steps_, loader));
      if (!result.is_empty) skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
      if (!result.not_finite.empty() && !result.skipped) return diverged(step, result.not_finite);
      if (skipped_in_a_row_ == dag::kSkippedInARowMax && !result.is_empty)
        return diverged(step, result.not_finite + ", and it is the " + std::to_string(skipped_in_a_row_) +
                                  "th in a row that is skipped");
      const Clock::time_point now = Clock::now();
      const double seconds = seconds_between(std::exchange(last, now), now);
      sink_(StepEvent{step, result.skipped ? std::numeric_limits<double>::quiet_NaN() : result.loss,
                      result.learning_rate, seconds, job_.batch_size / seconds, result.gradient_norm,
                      result.skipped});
      const bool final_step = step == total_steps_;
      const bool stop = options_.stop != nullptr && options_.stop->load() && !final_step;
      if (replicas_) {
        WEFT_TRY(const auto agreed, replicas_->after(step, !result.skipped, stop || final_step));
        if (!agreed) continue;
        if (!agreed->not_finite.empty())
          return diverged(step, "after it " + agreed->not_finite + " is not finite");
        WEFT_TRY_STATUS(take_down(*agreed));
        if (agreed->round.overlaps) continue;  // no weights are the run's
      }
      if (!stop && !final_step && is_evaluation_due(step, looked_at))
        if (const Status evaluated = evaluate(step); !evaluated) return give_up(step, evaluated.error());
      if (checkpoints_.is_due(step, looked_at) || stop) {
        WEFT_TRY(auto state, read_state());
        if (const std::string what = find_not_finite(state); !what.empty()) return diverged(step, what);
        if (stop) return stop_after(step, std::move(state));
        checkpoint_now_and_then(step, std::move(state));
      }
      looked_at = step;
    }
    if (const Status evaluated = evaluate(total_steps_); !evaluated)
      return give_up(total_steps_, evaluated.error());
    return finish();
  }

  bool is_evaluation_due(uint64_t step, uint64_t before) const {
    return job_.evaluate_every != 0 && step / job_.evaluate_every > before / job_.evaluate_every;
  }

  // It counts from when it is on the disk.
  Status take_down(const Agreed& agreed) {
    WEFT_TRY_STATUS(record_.add(agreed.round));
    sink_(AgreementEvent{agreed.round.steps_after(), agreed.round.steps, agreed.sent_bytes,
                         agreed.returned_bytes, agreed.dense_bytes});
    return {};
  }

  Status evaluate(uint64_t step) {
    if (!evaluation_) return {};
    WEFT_TRY(const auto metrics, evaluation_->evaluate(test_, job_.microbatch_size));
    metrics_ = metrics.by_name;
    sink_(EvaluationEvent{step, metrics.samples, metrics_});
    return {};
  }

  uint64_t skipped_steps() const { return session_ ? session_->skipped_steps() : skipped_steps_; }

  Result<storage::CheckpointTensors> read_state() const {
    if (replicas_) return replicas_->tensors();
    return train::read_state(*state_, trained_state_);
  }

  storage::Checkpoint checkpoint_of(uint64_t step, storage::CheckpointTensors tensors) {
    return {.run = "local-" + graph_hash_.substr(0, 12),
            .step = step,
            .skipped_steps = skipped_steps(),
            .data_position = step * job_.batch_size,
            .graph_hash = graph_hash_,
            .numerics = numerics(),
            .tensors = std::move(tensors),
            .settings = settings_after(step),
            .replica_updates = replicas_ ? replicas_->updates() : std::vector<uint64_t>{}};
  }

  // The disk may be full for a while: the run goes on, and the checkpoint before stays.
  void checkpoint_now_and_then(uint64_t step, storage::CheckpointTensors tensors) {
    const Status written = checkpoints_.write(checkpoint_of(step, std::move(tensors)));
    if (written) return sink_(CheckpointEvent{step, checkpoints_.path()});
    sink_(WarningEvent{step, "the checkpoint after step " + std::to_string(step) + " could not be written (" +
                                 written.error().message + "); training goes on"});
  }

  Status checkpoint_somewhere(uint64_t step, storage::CheckpointTensors tensors) {
    WEFT_TRY_STATUS(checkpoints_.write_somewhere(checkpoint_of(step, std::move(tensors))));
    sink_(CheckpointEvent{step, checkpoints_.path()});
    return {};
  }

  Result<ResultEvent> stop_after(uint64_t step, storage::CheckpointTensors tensors) {
    if (const Status written = checkpoint_somewhere(step, std::move(tensors)); !written)
      return fail(written.error().within("asked to stop, no checkpoint could be written"));
    ResultEvent event = result_so_far(step);
    event.stopped = true;
    sink_(event);
    return event;
  }

  // The run ends because of `error`, but what it learnt does not go with it.
  Result<ResultEvent> give_up(uint64_t step, const Error& error) {
    const std::string before = checkpoints_.path().string();
    auto tensors = read_state();
    const Status kept = tensors ? checkpoint_somewhere(step, *std::move(tensors)) : fail(tensors.error());
    ResultEvent event = result_so_far(step);
    event.failed = true;
    sink_(event);
    if (kept)
      return fail(error.code, error.message + "\nwhat was learnt is kept: the same command with --resume " +
                                  checkpoints_.path().string() + " goes on after step " +
                                  std::to_string(step) +
                                  " and writes the trained file; --set output=FILE puts it elsewhere");
    return fail(error.code, error.message + "\nnor could a checkpoint be written (" + kept.error().message +
                                "); " + (before.empty() ? "there is none" : "the last one is " + before));
  }

  ResultEvent result_so_far(uint64_t step) const {
    ResultEvent event;
    event.steps = step;
    event.seconds = seconds_between(start_, Clock::now());
    event.checkpoint = checkpoints_.path();
    event.metrics = metrics_;
    return event;
  }

  // What it would go on with has no meaning any more, nor would any checkpoint of it; or it goes on for ever
  // without learning anything. Nobody else computed it, so that going back would bring the same bits again.
  ResultEvent diverged(uint64_t step, const std::string& what) {
    ResultEvent event = result_so_far(step - 1);
    event.diverged = "step " + std::to_string(step) + ": " + what;
    sink_(event);
    return event;
  }

  Result<ResultEvent> finish() {
    dag::Weights trained;
    for (const dag::StateKey& key : trained_state_)
      if (is_weight(key.slot)) {
        WEFT_TRY(trained[key.name], state_->read(key));
        if (!dag::is_below_infinity(trained[key.name])) return diverged(total_steps_, name_not_finite(key));
      }
    skipped_steps_ = session_->skipped_steps();
    evaluation_.reset();  // the file is read again to be written: not beside gradients
    session_.reset();     // the state stays until it is, for a checkpoint where it cannot be
    const auto written = write_result(job_, model_.initial, model_.adapters, trained);
    if (!written) return give_up(total_steps_, written.error());
    ResultEvent event = result_so_far(total_steps_);
    event.checkpoint.clear();
    event.output = written->trained;
    event.inference = written->inference;
    if (!model_.adapters.empty()) {
      state_.reset();  // its memory is for the models that are compared
      event.adapter = adapter_folder(job_.output);
      WEFT_TRY(event.merge, check_merge(job_, trained, event.output, dataset_, backend_));
    }
    sink_(event);
    return event;
  }

  Job job_;  // `microbatch_size` settled
  peer::Backend& backend_;
  const TrainOptions& options_;
  const EventSink& sink_;
  Clock::time_point start_;

  storage::Files files_;
  std::shared_ptr<const data::Dataset> dataset_, test_;
  struct {
    std::optional<InitialWeights> initial;  // where the job says `init`
    Adapters adapters;
  } model_;
  uint64_t total_steps_ = 0, first_step_ = 1;
  Told told_;
  std::string graph_hash_;
  std::shared_ptr<peer::State> state_;
  std::unique_ptr<TrainingSession> session_;
  std::vector<dag::StateKey> trained_state_;  // what checkpoints hold
  std::vector<dag::StateKey> untrained_;      // weights that they do not
  std::optional<ReadHashes> read_hashes_;
  uint64_t skipped_in_a_row_ = 0, skipped_steps_ = 0;  // the latter when the session is gone
  std::unique_ptr<EvaluationSession> evaluation_;
  KeptCheckpoints checkpoints_;
  std::unique_ptr<ReplicasInTurn> replicas_;  // where they make local steps
  storage::OuterRecordWriter record_;
  std::map<std::string, double> metrics_;
};

}  // namespace

Result<ResultEvent> train(const Job& job, peer::Backend& backend, const TrainOptions& options,
                          const EventSink& sink) {
  return Run(job, backend, options, sink).run();
}

}  // namespace weft::train
