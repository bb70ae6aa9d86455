// The replicas of a run with local steps on one machine: one executor computes them in turn, in the order in
// which the run's steps are dealt to them (replicas/outer_round.h), and after each round they agree
// (replicas/agreement.h). Nothing of it depends on time or on who is fast: these are the bytes that the same
// rounds have wherever they are made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/state.h"
#include "peer/state.h"
#include "replicas/agreement.h"
#include "replicas/outer_round.h"
#include "storage/checkpoint.h"
#include "train/session.h"

namespace weft::train {

// What an outer round came to.
struct Agreed {
  replicas::OuterRound round;
  uint64_t sent_bytes = 0;      // by all replicas together, of their differences
  uint64_t returned_bytes = 0;  // to each of them, of the mean
  uint64_t dense_bytes = 0;     // that a replica's difference would have had, uncompressed
  std::string not_finite{};     // what of it; then nothing was agreed
};

// What is said where a checkpoint is of another number of replicas than the job has.
std::string describe_other_replicas(size_t then, size_t now);
// How many there are on one machine, and when they agree.
std::string describe_replicas(const replicas::ReplicaTerms& terms);

class ReplicasInTurn {
 public:
  struct Options {
    uint64_t steps = 0;                            // of the whole run
    std::vector<replicas::OuterRound> replayed{};  // the first rounds, as they once were
  };
  // `trained_state` as dag::trained_state says. Takes the weights that `state` holds as agreed. Unsupported:
  // one of them is not in float32. `job` outlives this.
  static Result<std::unique_ptr<ReplicasInTurn>> create(const configs::Job& job,
                                                        const std::vector<dag::StateKey>& trained_state,
                                                        std::shared_ptr<peer::State> state, Options options);

  // Of a step of the run whose samples it takes; for any thread, also when this is no more.
  std::function<uint64_t(uint64_t step)> samples_of() const {
    return [taken = taken_](uint64_t step) { return taken.of(step); };
  }
  // Goes on from a checkpoint. Replicas that are not in it have the optimizer's slots of its first one, and
  // owe nothing; what is said where it has others than the job, empty: nothing. InvalidArgument: a
  // tensor is not there, or of another shape.
  Result<std::string> resume(const storage::Checkpoint& checkpoint);

  // Before a step and after it, each in its turn. `updates`: it was not skipped. `ends`: the round ends with
  // it, whoever has not begun or ended its part. Nothing: the round goes on.
  Result<StepPlace> before(uint64_t step);
  Result<std::optional<Agreed>> after(uint64_t step, bool updates, bool ends);
  // Whether the round ends after it by itself.
  bool ends_round(uint64_t step) const;

  // For a checkpoint, between two rounds; they share their bytes with this until the next one.
  storage::CheckpointTensors tensors() const;
  const std::vector<uint64_t>& updates() const { return updates_; }  // by replica

 private:
  struct Shared {  // a weight
    dag::StateKey key;
    dag::Tensor agreed;
    bool is_statistic = false;
    uint32_t fragment = 0;
    replicas::Mean mean;
    std::vector<float> momentum{}, return_residue{};
    std::vector<float> overlapped{};  // the mean of the round before, as read; empty: all have agreed on it
  };
  struct Own {                                 // a replica's
    std::vector<dag::Tensor> slots;            // as slots_
    std::vector<std::vector<float>> residues;  // as shared_; empty where nothing is owed
    // Likewise, where rounds overlap: what its round began with, empty: what was agreed; its last difference,
    // as read, and of a running statistic the value.
    std::vector<std::vector<float>> starts, differences;
    // Likewise, where a round may be about a part of the model: what it ended with; empty: see starts.
    std::vector<std::vector<float>> now;
    std::vector<uint64_t> steps;  // by fragment: made since it was agreed about
  };
  ReplicasInTurn(const configs::Job& job, std::shared_ptr<peer::State> state, Options options)
      : job_(job), state_(std::move(state)), options_(std::move(options)), taken_(options_.replayed) {}
  Status begin(const std::vector<dag::StateKey>& trained_state);
  bool owes() const { return job_.replicas.codec.kind != compress::Kind::Dense; }
  replicas::OuterRound next_round(uint64_t steps_before);
  void inherit(const replicas::Inherited& inherited);
  void become(size_t replicas);
  Status load(const Own& own);
  Result<std::string> collect(uint32_t replica, uint64_t steps);
  std::string add(size_t i, uint32_t replica, std::vector<float> values);
  std::string add_kept(size_t i);
  void move_on(size_t i);
  Result<std::string> agree();
  Result<std::string> pass_mean(size_t i, std::vector<float>& mean);
  void take(Shared& shared, const std::vector<float>& mean) const;
  void go_on(size_t i);
  Result<dag::Tensor> read_float(const dag::StateKey& key) const;

  const configs::Job& job_;
  std::shared_ptr<peer::State> state_;
  Options options_;
  replicas::TakenSamples taken_;
  std::vector<Shared> shared_;
  std::vector<dag::StateKey> slots_;
  std::vector<Own> own_;
  std::vector<uint64_t> updates_;
  Agreed under_way_;
  bool is_under_way_ = false;
  replicas::PassScratch scratch_;
};

}  // namespace weft::train
