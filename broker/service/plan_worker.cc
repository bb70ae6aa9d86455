#include "broker/service/plan_worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "broker/service/planner.h"
#include "storage/blob_store.h"

namespace weft::broker {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // the sanitizer reserves terabytes, which a limit would count
#else
constexpr bool kIsSanitized = false;
#endif

// From wherever memory is asked for, also where no exception may pass.
[[noreturn]] void end_without_memory() { ::_exit(kPlanWorkerOutOfMemory); }

void limit(int resource, rlim_t most) {
  const rlimit both{.rlim_cur = most, .rlim_max = most};
  (void)::setrlimit(resource, &both);
}

// Ends with the broker, even while it computes; takes what memory and time others leave; and is the one that
// the system ends where memory is short.
Status become_worker(const PlanWorkerOptions& options) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (options.parent != 0 && ::getppid() != options.parent)
    return fail(ErrorCode::Cancelled, "the broker that started it is gone");
  limit(RLIMIT_CORE, 0);
  if (options.memory_max.value > 0 && !kIsSanitized)
    limit(RLIMIT_DATA, static_cast<rlim_t>(options.memory_max.value));
  std::set_new_handler(end_without_memory);
  (void)::nice(10);
  if (const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    (void)!::write(score, "1000", 4);
    ::close(score);
  }
  return {};
}

Result<PlanReply> answer(JobPlanner& planner, const ReceivedQuestion& question) {
  const StartPlanning& request = question.request;
  PlanReply reply;
  switch (question.task.task) {
    case proto::PlanTask::Check: {
      WEFT_TRY(const JobPlanner::Wanted wanted, planner.check(*request.submission));
      reply.compresses = wanted.compresses;
      reply.arithmetic = wanted.arithmetic;
      reply.skips_steps = wanted.skips_steps;
      reply.peer_minor = wanted.peer_minor;
      reply.serves = wanted.serves;
      return reply;
    }
    case proto::PlanTask::Open:
      WEFT_TRY_STATUS(planner.open(request.job, *request.submission, request.microbatch_size));
      break;
    case proto::PlanTask::Plan: {
      WEFT_TRY(reply.run, planner.plan(request, question.task.is_first));
      break;
    }
  }
  reply.feed = planner.feed();
  return reply;
}

}  // namespace

Status run_plan_worker(const PlanWorkerOptions& options) {
  if (::fcntl(kPlanWorkerSocket, F_GETFD) < 0)
    return fail(ErrorCode::InvalidArgument, "weft broker starts it; there is nothing to do by hand");
  WEFT_TRY_STATUS(become_worker(options));
  WEFT_TRY(const auto blobs, storage::BlobStore::open(options.blobs));
  JobPlanner planner(options.jobs, *blobs, options.copy_rate);
  FramePipe pipe(kPlanWorkerSocket);
  for (;;) {
    const auto question = receive_question(pipe);
    if (!question) return question.error().code == ErrorCode::Unavailable ? Status{} : fail(question.error());
    Result<PlanReply> reply = fail(ErrorCode::Internal, "");
    try {
      reply = answer(planner, *question);
    } catch (const std::exception& error) {
      reply = fail(ErrorCode::Internal, std::string("planning failed: ") + error.what());
    }
    if (!send_answer(pipe, reply)) return {};
  }
}

}  // namespace weft::broker
