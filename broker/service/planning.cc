#include "broker/service/planning.h"

#include <algorithm>
#include <exception>
#include <new>

#include "broker/place/pace.h"
#include "broker/service/place_again.h"

namespace weft::broker {

namespace fs = std::filesystem;

namespace {

// Whatever goes wrong with one job is that job's alone.
template <typename Do>
auto guarded(const Do& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "the broker's memory does not suffice");
  } catch (const std::exception& error) {
    return fail(ErrorCode::Internal, std::string("planning failed: ") + error.what());
  }
}

// About what it takes in memory.
size_t size_of(const proto::SubmitJob& submission) {
  size_t size = submission.job.size() + submission.recipes.size() * sizeof(proto::BlobRecipe);
  for (const proto::PackedFile& file : submission.files) {
    size += sizeof file + file.path.size();
    for (const proto::FilePiece& piece : file.pieces) size += sizeof piece + piece.bytes.size();
  }
  return size;
}

}  // namespace

Planning::Planning(PlanningOptions options, storage::BlobStore& blobs, JobFeeds& feeds)
    : options_(std::move(options)),
      blobs_(blobs),
      feeds_(feeds),
      ends_(std::make_unique<net::Worker>()),
      places_(std::make_unique<net::Worker>()),
      checker_(std::make_unique<net::Worker>()) {
  for (size_t i = 0; i <= options_.working_max; ++i) threads_.emplace_back([this] { serve(); });
}

Planning::~Planning() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [job, process] : at_work_) process->cancel();
  }
  changed_.notify_all();
  checker_.reset();
  for (std::thread& thread : threads_) thread.join();
  places_.reset();
}

fs::path Planning::folder_of(proto::JobNumber job) const {
  return options_.process.jobs / std::to_string(job);
}

// ---- what the core asks for

void Planning::check(CheckSubmission request,
                     std::function<void(const CheckSubmission&, Result<PlanReply>)> done) {
  const size_t size = size_of(*request.submission);
  {
    const MutexLock lock(mutex_);
    const auto of_one = checks_of_.find(request.connection);
    const bool is_much = checks_ >= options_.checks_max || checks_size_ + size > options_.checks_size_max ||
                         (of_one != checks_of_.end() && of_one->second >= options_.checks_of_one_max);
    if (!is_much || checks_ == 0) {
      ++checks_;
      checks_size_ += size;
      ++checks_of_[request.connection];
    } else {
      return done(request, fail(ErrorCode::ResourceExhausted,
                                "too many submissions are being looked at: try again in a moment"));
    }
  }
  checker_->post([this, size, request = std::move(request), done = std::move(done)] {
    auto reply = guarded([&]() -> Result<PlanReply> {
      // What is only in this process, or about to be collected, is there and stays.
      for (const proto::PackedFile& file : request.submission->files)
        for (const proto::FilePiece& piece : file.pieces)
          if (piece.sha256) WEFT_TRY_STATUS(blobs_.have(*piece.sha256, storage::Durability::Durable));
      return ask({.submission = request.submission}, {.task = proto::PlanTask::Check});
    });
    {
      const MutexLock lock(mutex_);
      --checks_;
      checks_size_ -= size;
      if (--checks_of_.at(request.connection) == 0) checks_of_.erase(request.connection);
    }
    done(request, std::move(reply));
  });
}

void Planning::plan(StartPlanning request, std::function<void(Planned)> done) {
  bool only_peers = request.previous && request.placed.size() == request.previous->stages.size();
  {
    const MutexLock lock(mutex_);
    if (failed_to_open_.contains(request.job)) only_peers = false;
  }
  const auto anew = [this](const std::shared_ptr<const StartPlanning>& asked,
                           const std::function<void(Planned)>& then) {
    post({.job = asked->job,
          .is_urgent = asked->previous != nullptr || asked->checkpoint.has_value(),
          .run = [this, asked, then] { then(guarded([&] { return plan_anew(*asked); })); }});
  };
  const auto asked = std::make_shared<const StartPlanning>(std::move(request));
  if (!only_peers) return anew(asked, done);
  places_->post([this, asked, anew, done = std::move(done)] {
    auto again = guarded([&] {
      return place_again(*asked, feeds_.find(asked->job).get(), blobs_,
                         options_.process.copy_rate.value_or(0));
    });
    // Without the job at hand its first values have no name: then everything is made anew.
    if (!again && again.error().code == ErrorCode::Unavailable) return anew(asked, done);
    done(std::move(again));
  });
}

void Planning::reconsider(Reconsider request, std::function<void(Result<Reconsidered::Other>)> done) {
  const proto::JobNumber job = request.request.job;
  post({.job = job, .run = [this, request = std::move(request), done = std::move(done)] {
          done(guarded([&]() -> Result<Reconsidered::Other> {
            WEFT_TRY(const PlanReply reply, ask(request.request, {.task = proto::PlanTask::Plan}));
            if (!reply.run) return fail(ErrorCode::Internal, "planning gave no plan");
            return compare_runs(request, *reply.run);
          }));
        }});
}

void Planning::open(proto::JobNumber job, proto::Encoded<proto::SubmitJob> submission,
                    uint32_t microbatch_size, std::function<void(Status)> done) {
  post({.job = job,
        .is_urgent = true,
        .run = [this, job, microbatch_size, submission = std::move(submission), done = std::move(done)] {
          Status opened = guarded([&]() -> Status {
            WEFT_TRY(const PlanReply reply,
                     ask({.job = job, .submission = submission, .microbatch_size = microbatch_size},
                         {.task = proto::PlanTask::Open}));
            return note_feed(job, reply);
          });
          if (!opened) {
            const MutexLock lock(mutex_);
            failed_to_open_.insert(job);
          }
          done(std::move(opened));
        }});
}

void Planning::end(proto::JobNumber job) {
  std::vector<Kept> processes;
  fs::path files;
  {
    const MutexLock lock(mutex_);
    std::erase_if(queue_, [&](const Work& work) { return work.job == job; });
    if (working_.contains(job)) {
      feeds_.erase(job);
      ended_.insert(job);
      if (const auto at = at_work_.find(job); at != at_work_.end()) at->second->cancel();
      return;  // finish() does the rest
    }
    forget(job, processes, files);
  }
  clear_away(std::move(processes), std::move(files));
}

// The files get another name at once: the job may be resumed before they are gone.
void Planning::forget(proto::JobNumber job, std::vector<Kept>& processes, fs::path& files) {
  feeds_.erase(job);
  failed_to_open_.erase(job);
  for (auto at = kept_.begin(); at != kept_.end();)
    if (at->job == job) {
      processes.push_back(std::move(*at));
      at = kept_.erase(at);
    } else {
      ++at;
    }
  std::error_code code;
  files = folder_of(job);
  files += ".over-" + std::to_string(++forgotten_);
  fs::rename(folder_of(job), files, code);
}

// ---- the threads that plan

void Planning::post(Work work) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Planning::serve() {
  for (;;) {
    Work work;
    {
      const MutexLock lock(mutex_);
      auto next = queue_.end();
      changed_.wait(mutex_, [&]() WEFT_REQUIRES(mutex_) {
        const auto may_go = [&](const Work& each)
                                WEFT_REQUIRES(mutex_) { return !working_.contains(each.job); };
        next = std::find_if(queue_.begin(), queue_.end(), [&](const Work& each) WEFT_REQUIRES(mutex_) {
          return each.is_urgent && may_go(each);
        });
        if (next == queue_.end() && not_urgent_ < options_.working_max)
          next = std::find_if(queue_.begin(), queue_.end(), may_go);
        return stopping_ || next != queue_.end();
      });
      if (stopping_) return;
      work = std::move(*next);
      queue_.erase(next);
      working_.insert(work.job);
      not_urgent_ += !work.is_urgent;
    }
    work.run();
    finish(work);
  }
}

void Planning::finish(const Work& work) {
  std::vector<Kept> processes;
  fs::path files;
  {
    const MutexLock lock(mutex_);
    working_.erase(work.job);
    not_urgent_ -= !work.is_urgent;
    if (ended_.erase(work.job) > 0) forget(work.job, processes, files);
  }
  changed_.notify_all();
  clear_away(std::move(processes), std::move(files));
}

// Waiting until a process of gigabytes is gone, and removing files, is for a thread that nobody waits for.
void Planning::clear_away(std::vector<Kept> processes, fs::path files) {
  if (processes.empty() && files.empty()) return;
  auto held = std::make_shared<std::vector<Kept>>(std::move(processes));
  ends_->post([held, files = std::move(files)] {
    held->clear();
    std::error_code code;
    if (!files.empty()) fs::remove_all(files, code);
  });
}

Planning::Planned Planning::plan_anew(const StartPlanning& request) {
  if (request.candidates.empty()) return fail(ErrorCode::Infeasible, "no peer is free");
  WEFT_TRY(const PlanReply reply, ask(request, {proto::PlanTask::Plan, request.previous == nullptr}));
  if (!reply.run) return fail(ErrorCode::Internal, "planning gave no plan");
  WEFT_TRY_STATUS(note_feed(request.job, reply));
  return reply.run;
}

Status Planning::note_feed(proto::JobNumber job, const PlanReply& reply) {
  if (!reply.feed) return fail(ErrorCode::Internal, "planning did not say how to feed the job");
  WEFT_TRY(auto feed, from_message(*reply.feed, folder_of(job)));
  feeds_.set(job, std::move(feed));
  const MutexLock lock(mutex_);
  failed_to_open_.erase(job);
  return {};
}

// ---- processes

Result<PlanReply> Planning::ask(const StartPlanning& request, const PlanTaskAt& task) {
  const bool checks = task.task == proto::PlanTask::Check;
  WEFT_TRY(Process process, take(request.job));
  auto reply = process->ask(request, task, checks ? options_.check_time_max : options_.plan_time_max);
  give_back(request.job, std::move(process));
  return reply;
}

Result<Planning::Process> Planning::take(proto::JobNumber job) {
  std::vector<Kept> too_many;
  Process process;
  {
    const MutexLock lock(mutex_);
    auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.job == job; });
    if (at == kept_.end())
      at = std::find_if(kept_.begin(), kept_.end(), [](const Kept& kept) { return kept.job == 0; });
    if (at != kept_.end()) {
      process = std::move(at->process);
      kept_.erase(at);
    } else if (kept_.size() + at_work_.size() >= options_.kept_max && !kept_.empty()) {
      too_many.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
  }
  clear_away(std::move(too_many), {});
  if (!process) {
    WEFT_TRY(process, PlanProcess::start(options_.process));
  }
  const MutexLock lock(mutex_);
  if (stopping_ || ended_.contains(job)) return fail(ErrorCode::Cancelled, "it is not wanted any more");
  at_work_[job] = process.get();
  return process;
}

void Planning::give_back(proto::JobNumber job, Process process) {
  std::vector<Kept> too_many;
  {
    const MutexLock lock(mutex_);
    at_work_.erase(job);
    if (process->is_alive() && !stopping_) kept_.push_back({job, std::move(process)});
    too_many = surplus();
  }
  if (process) too_many.push_back({job, std::move(process)});
  clear_away(std::move(too_many), {});
}

std::vector<Planning::Kept> Planning::surplus() {
  std::vector<Kept> too_many;
  int64_t resident = 0;
  for (const Kept& kept : kept_) resident += kept.process->resident().value;
  const int64_t most = options_.process.memory_max.value;
  while (!kept_.empty() &&
         (kept_.size() + at_work_.size() > options_.kept_max || (most > 0 && resident > most))) {
    resident -= kept_.front().process->resident().value;
    too_many.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
  return too_many;
}

}  // namespace weft::broker
