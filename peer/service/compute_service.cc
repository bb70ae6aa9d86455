#include "peer/service/compute_service.h"

#include <atomic>
#include <future>

#include "base/overloaded.h"
#include "dag/slots.h"
#include "peer/backend/host/host_memory.h"
#include "peer/service/bulk.h"
#include "peer/service/encoding.h"
#include "peer/service/inbox.h"
#include "storage/blob_store.h"

namespace weft::peer {

namespace {
template <typename T>
bool is_lost(const Result<T>& result) {
  return !result && result.error().code == ErrorCode::DeviceLost;
}
// The tensors that a runner is made of: each is let go of when it has been taken as often as it is named.
class BlobsInTurn {
 public:
  BlobsInTurn(const proto::AssignStage& assignment, std::map<Digest, net::SharedBytes> blobs)
      : blobs_(std::move(blobs)) {
    for (const proto::TensorReference& tensor : assignment.tensors) ++left_[tensor.sha256];
  }

  Result<dag::Tensor> take(const proto::TensorReference& reference) {
    const auto at = blobs_.find(reference.sha256);
    if (at == blobs_.end())
      return fail(ErrorCode::Internal, "the tensor of '" + reference.key.name + "' is not here");
    const net::SharedBytes bytes = at->second;
    const size_t size = bytes.bytes.size();
    if (static_cast<int64_t>(size) != reference.spec.bytes().value)
      return fail(ErrorCode::InvalidArgument, "the tensor of '" + reference.key.name + "' has " +
                                                  std::to_string(size) + " bytes, " +
                                                  dag::to_string(reference.spec) + " has others");
    give_back_now_and_then(size);
    if (--left_.at(reference.sha256) == 0) blobs_.erase(at);
    return dag::Tensor(reference.spec, buffer_of(bytes));
  }
  void clear() { blobs_.clear(); }

 private:
  // Nobody writes into it.
  static std::shared_ptr<std::byte[]> buffer_of(const net::SharedBytes& bytes) {
    auto* begin = const_cast<std::byte*>(bytes.bytes.data());
    return std::shared_ptr<std::byte[]>(std::const_pointer_cast<void>(bytes.owner), begin);
  }

  // Those taken before have gone by now, and the heap keeps what they were.
  void give_back_now_and_then(size_t size) {
    constexpr size_t kMuch = size_t{64} << 20;
    taken_ += size;
    if (taken_ < kMuch) return;
    taken_ = 0;
    return_freed_memory();
  }

  std::map<Digest, net::SharedBytes> blobs_;
  std::map<Digest, size_t> left_;
  size_t taken_ = 0;
};
RunnerSize size_of(const ServeRunner& runner) {
  return {.persistent = runner.persistent_bytes(), .edges = runner.edges(), .on_host = runner.kept_bytes()};
}

}  // namespace

struct ComputeService::Stage {
  Stage(uint64_t number, std::shared_ptr<const proto::AssignStage> assigned)
      : generation(number), assignment(std::move(assigned)) {}

  const uint64_t generation;
  const std::shared_ptr<const proto::AssignStage> assignment;
  std::map<Digest, net::SharedBytes> blobs;  // until the runner is made of them
  // The compute thread's: one of them.
  std::unique_ptr<StageRunner> runner;
  std::unique_ptr<ServeRunner> server;
  // By the compute thread, which then makes a runner, or by whoever drops the stage before that: then there
  // is nothing to wait for.
  std::atomic<bool> begun = false;
  std::atomic<bool> dropped = false;     // what is still to be done for it is not wanted
  std::atomic<bool> parked = false;      // what was not begun is not
  std::atomic<bool> failed = false;      // a task has; what was handed out behind it builds on it
  std::atomic<uint32_t> waited_for = 0;  // tasks that the device has and wait_ waits for
};

ComputeService::ComputeService(net::Loop& owner, LinkService& links, Options options, Handlers handlers)
    : owner_(owner),
      links_(links),
      options_(std::move(options)),
      handlers_(std::make_shared<Handlers>(std::move(handlers))) {
  compute_->post([this] {
    auto made = options_.make_backend();
    const Status status = made ? Status{} : fail(made.error());
    if (made) {
      backend_ = std::move(*made);
      if (options_.memory) backend_->set_limit(*options_.memory);
    }
    tell_always([status](const Handlers& to) { to.on_backend(status); });
  });
}

ComputeService::~ComputeService() { rest(Duration::max()); }

// Memory and backend go on the thread that made them.
bool ComputeService::rest(Duration within) {
  while (!stages_.empty()) drop(stages_.begin()->first);
  compute_->post([this] { backend_.reset(); });
  const auto done = std::make_shared<std::promise<void>>();
  after_all([done] { done->set_value(); });
  std::future<void> at_rest = done->get_future();
  if (within != Duration::max()) return at_rest.wait_for(within) == std::future_status::ready;
  at_rest.wait();
  return true;
}

// Each hands on to the next, and nothing back.
void ComputeService::after_all(std::function<void()> what) {
  compute_->post([this, what = std::move(what)] { wait_->post([this, what] { hash_->post(what); }); });
}

void ComputeService::ask() {
  const auto answered = std::make_shared<Status>();
  compute_->post([this, answered] {
    if (backend_) *answered = backend_->synchronize();
  });
  after_all([this, answered] { tell_always([answered](const Handlers& to) { to.on_device(*answered); }); });
}

void ComputeService::tell(const StagePtr& stage, std::function<void(const Handlers&)> what) {
  owner_.post([handlers = std::weak_ptr(handlers_), stage, what = std::move(what)] {
    const auto here = handlers.lock();
    if (here && (!stage || !stage->dropped)) what(*here);
  });
}

void ComputeService::make(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment,
                          std::map<Digest, net::SharedBytes> blobs) {
  drop(generation);
  StagePtr& held = stages_[generation];
  held = std::make_shared<Stage>(generation, std::move(assignment));
  held->blobs = std::move(blobs);
  // Weak: however many are assigned and dropped while the thread is busy, only those that are held are kept.
  compute_->post([this, here = std::weak_ptr(held)] {
    const StagePtr stage = here.lock();
    if (!stage || stage->begun.exchange(true)) return;
    BlobsInTurn in_turn(*stage->assignment, std::move(stage->blobs));
    const auto size = make_runner(stage, [&](const auto& reference) { return in_turn.take(reference); });
    in_turn.clear();
    return_freed_memory();
    tell(is_lost(size) ? nullptr : stage,
         [stage, size](const Handlers& to) { to.on_runner(stage->generation, size); });
  });
}

Result<RunnerSize> ComputeService::make_runner(const StagePtr& stage,
                                               const StageRunner::TensorSource& tensors) {
  if (stage->assignment->serve) {
    WEFT_TRY(stage->server, ServeRunner::create(stage->assignment, tensors, *backend_));
    return size_of(*stage->server);
  }
  WEFT_TRY(stage->runner, StageRunner::create(stage->assignment, tensors, *backend_));
  return RunnerSize{stage->runner->persistent_bytes(), stage->runner->microbatch_bytes(), {}};
}

void ComputeService::load(uint64_t generation, std::map<Digest, net::SharedBytes> blobs) {
  const StagePtr& held = stages_.at(generation);
  in_turn(*held,
          [this, stage = held, all = std::make_shared<std::map<Digest, net::SharedBytes>>(std::move(blobs))] {
            if (stage->dropped || stage->failed || !stage->runner) return;
            BlobsInTurn in_turn(*stage->assignment, std::move(*all));
            Result<RunnerSize> size = fail(ErrorCode::Cancelled, "not loaded");
            if (const Status loaded =
                    stage->runner->load([&](const auto& reference) { return in_turn.take(reference); });
                loaded)
              size = RunnerSize{stage->runner->persistent_bytes(), stage->runner->microbatch_bytes(), {}};
            else
              size = fail(loaded.error());
            stage->failed = !size;
            in_turn.clear();
            return_freed_memory();
            tell(is_lost(size) ? nullptr : stage,
                 [stage, size](const Handlers& to) { to.on_runner(stage->generation, size); });
          });
}

void ComputeService::park(uint64_t generation) { stages_.at(generation)->parked = true; }

void ComputeService::take_over(uint64_t generation, uint64_t from,
                               std::shared_ptr<const proto::AssignStage> assignment) {
  const StagePtr before = stages_.extract(from).mapped();
  const StagePtr stage = std::make_shared<Stage>(generation, std::move(assignment));
  stage->begun = true;
  stages_[generation] = stage;
  compute_->post([this, before, stage] {
    stage->server = std::move(before->server);
    Result<RunnerSize> size = fail(ErrorCode::Cancelled, "the stage before had failed");
    if (stage->server && !before->failed) {
      stage->server->take_over(stage->assignment);
      size = size_of(*stage->server);
    }
    tell(stage, [stage, size](const Handlers& to) { to.on_runner(stage->generation, size); });
  });
}

void ComputeService::drop(uint64_t generation) {
  const auto held = stages_.extract(generation);
  if (held.empty()) return;
  const StagePtr& stage = held.mapped();
  stage->dropped = true;
  if (!stage->begun.exchange(true)) return;
  compute_->post([stage] {
    stage->runner.reset();
    stage->server.reset();
    return_freed_memory();
  });
}

void ComputeService::run(uint64_t generation, const Task& task, StageRunner::Inputs inputs) {
  const StagePtr& stage = stages_.at(generation);
  in_turn(*stage, [this, stage, task, inputs = std::move(inputs)]() mutable {
    if (stage->dropped || stage->failed || stage->parked) return;
    if (stage->server) return run_pass(stage, task, std::exchange(inputs, {}));
    run_now(stage, task, std::exchange(inputs, {}));
  });
}

void ComputeService::in_turn(const Stage& stage, std::function<void()> what) {
  if (stage.assignment->serve)
    turns_.add_ahead(std::move(what));
  else
    turns_.add(std::move(what));
  compute_->post([this] { turns_.take_one(); });
}

void ComputeService::request(uint64_t generation, Asked what) {
  const StagePtr& held = stages_.at(generation);
  in_turn(*held, [stage = held, what = std::move(what)] {
    if (stage->dropped || stage->failed || !stage->server) return;
    std::visit(Overloaded{[&](const proto::ServeRequest& request) { stage->server->add(request); },
                          [&](const proto::CancelRequest& cancel) { stage->server->cancel(cancel.request); }},
               what);
  });
}

// A pass goes on as soon as it is made: the other stages compute while this one makes the next.
void ComputeService::run_pass(const StagePtr& stage, const Task& task, StageRunner::Inputs inputs) {
  const Instant began = owner_.now();
  const plan::Seat to = ServeScript::behind(*stage->assignment);
  const auto outcome = stage->server->run(task, std::move(inputs.received),
                                          [&](const proto::TensorHeader& header, const dag::Tensor& tensor) {
                                            links_.send(stage->generation, to, header, tensor);
                                          });
  if (options_.on_task) options_.on_task(task, began, owner_.now());
  end(stage, task, outcome);
}

// Where the device is done when its calls return, nobody else has to be woken up.
void ComputeService::run_now(const StagePtr& stage, const Task& task, const StageRunner::Inputs& inputs) {
  const Instant began = owner_.now();
  auto submitted = stage->runner->submit(task, inputs);
  if (options_.on_task) options_.on_task(task, began, owner_.now());
  if (const auto key = submitted ? std::nullopt : stage->runner->not_finite()) {
    stage->failed = true;
    tell(stage, [stage, task, key = *key](const Handlers& to) {
      if (to.on_not_finite) to.on_not_finite(stage->generation, task, key);
    });
  } else if (!submitted) {
    end(stage, task, fail(submitted.error()));
  } else if (stage->waited_for == 0 && submitted->busy->is_over()) {
    finish(stage, task, std::move(*submitted));
  } else {
    ++stage->waited_for;
    wait_->post([this, stage, task, work = std::make_shared<Submitted>(std::move(*submitted))] {
      if (!stage->dropped && !stage->failed) finish(stage, task, std::move(*work));
      --stage->waited_for;
    });
  }
}

void ComputeService::finish(const StagePtr& stage, const Task& task, Submitted submitted) {
  const auto outcome = take(stage, task, submitted);
  end(stage, task, outcome);
  if (!outcome) return;
  if (task.kind == TaskKind::Snapshot) hash(stage, task, std::move(submitted.snapshot));
  if (!submitted.predictions.empty()) hash(stage, task, std::move(submitted.predictions));
}

void ComputeService::end(const StagePtr& stage, const Task& task, const Result<TaskOutcome>& outcome) {
  if (!outcome) stage->failed = true;
  tell(is_lost(outcome) ? nullptr : stage,
       [stage, task, outcome](const Handlers& to) { to.on_done(stage->generation, task, outcome); });
}

// What a task made is on its way, or to be encoded, before anybody hears that it has run.
Result<TaskOutcome> ComputeService::take(const StagePtr& stage, const Task& task, Submitted& submitted) {
  const proto::AssignStage& assignment = *stage->assignment;
  for (const auto& [index, download] : submitted.sends) {
    WEFT_TRY(const dag::Tensor tensor, download->take());
    const proto::StageProgram& program = program_of(assignment, task.key.program);
    const proto::EdgeEnd& end = program.sends[index];
    const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
    const bool dense = proto::is_comparison(task.key.microbatch) &&
                       proto::comparison_pass(task.key.microbatch) == proto::ComparisonPass::Dense;
    send(stage, end,
         {.run = assignment.run,
          .plan_version = assignment.plan_version,
          .step = task.key.step,
          .microbatch = task.key.microbatch,
          .edge = end.edge,
          .program = task.key.program,
          .direction = backward ? proto::Direction::Backward : proto::Direction::Forward,
          .replica = static_cast<uint16_t>(assignment.seat.replica),
          .spec = tensor.spec(),
          .codec = dense ? compress::Codec{} : end.codec},
         tensor);
  }
  for (SendingShare& sum : submitted.sums) {
    WEFT_TRY(sum.share.payload, sum.payload->take());
    send_sum(stage, std::move(sum.share));
  }
  for (SentShare& share : submitted.agreed) send(stage, share);
  return StageRunner::take_outcome(submitted);
}

// Whole gradients at once: cotangents of the same step do not stand behind them.
void ComputeService::send_sum(const StagePtr& stage, SentShare sum) {
  if (sum.header.codec.kind == compress::Kind::Dense) return send(stage, sum);
  sum_encoder_.post([this, stage, sum = std::move(sum)](compress::Scratch& scratch) mutable {
    if (stage->dropped) return;
    sum.payload = encode_tensor(sum.header, sum.payload, stage->assignment->training.seed, scratch);
    send(stage, sum);
  });
}

// It was encoded with the task, where what is not read of it stays with its sender, or counts here as read.
void ComputeService::send(const StagePtr& stage, SentShare& share) {
  const size_t dense = static_cast<size_t>(share.header.spec.bytes().value),
               sent = share.payload.bytes().size();
  links_.send(stage->generation, share.to, share.header, std::move(share.payload));
  links_.count(stage->generation, share.to, {dense, sent, {}});
}

void ComputeService::send(const StagePtr& stage, const proto::EdgeEnd& end, proto::TensorHeader header,
                          dag::Tensor tensor) {
  const plan::Seat to = other_end(end, stage->assignment->seat);
  if (header.codec.kind == compress::Kind::Dense) return links_.send(stage->generation, to, header, tensor);
  encoder_.post([this, stage, to, header = std::move(header),
                 tensor = std::move(tensor)](compress::Scratch& scratch) mutable {
    if (stage->dropped) return;
    const uint64_t seed = stage->assignment->training.seed;
    const dag::Tensor payload = encode_tensor(header, tensor, seed, scratch);
    links_.send(stage->generation, to, header, payload);
    LinkService::Encoded encoded{tensor.bytes().size(), payload.bytes().size(), {}};
    if (header.microbatch == 0 && header.codec.kind != compress::Kind::Dense)
      encoded.relative_error = relative_error_of(header, tensor, payload, seed, scratch);
    links_.count(stage->generation, to, encoded);
  });
}

// Each tensor by itself, so that those which change from step to step can go.
void ComputeService::hash(const StagePtr& stage, const Task& task, std::vector<Submitted::Named> tensors) {
  hash_->post([this, stage, task,
               named = std::make_shared<std::vector<Submitted::Named>>(std::move(tensors))] {
    if (stage->dropped) return;
    std::vector<Hashed> hashed;
    for (Submitted::Named& one : *named) {
      auto taken = one.tensor->take();
      if (!taken) return end(stage, task, fail(taken.error()));
      if (task.kind == TaskKind::Snapshot && !dag::is_finite_state(one.key, *taken))
        return tell(stage, [stage, task, key = one.key](const Handlers& to) {
          if (to.on_not_finite) to.on_not_finite(stage->generation, task, key);
        });
      const auto tensor = std::make_shared<const dag::Tensor>(std::move(*taken));
      hashed.push_back(
          {{one.key, tensor->spec(), storage::sha256(tensor->bytes())}, {tensor, tensor->bytes()}});
    }
    tell(stage, [stage, task, hashed](const Handlers& to) { to.on_hashed(stage->generation, task, hashed); });
  });
}

}  // namespace weft::peer
