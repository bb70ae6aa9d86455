#include "broker/service/plan_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace weft::broker {

namespace {

constexpr Duration kGraceToEnd = std::chrono::seconds(1);  // of one that hung up: for its status

std::string amount(Bytes bytes) {
  const int64_t mebibytes = bytes.value >> 20;
  return mebibytes % 1024 == 0 ? std::to_string(mebibytes / 1024) + " GiB"
                               : std::to_string(mebibytes) + " MiB";
}

std::string amount(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

// The end of a socket pair that nobody inherits but whom it is given to.
struct Pair {
  int ours = -1, theirs = -1;
  ~Pair() {
    if (ours >= 0) ::close(ours);
    if (theirs >= 0) ::close(theirs);
  }
};

// Nothing of the broker's but the socket: neither its connections nor its terminal, nor what Ctrl-C there
// means.
int spawn(pid_t& process, const std::string& program, const std::vector<std::string>& words, int socket) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, socket, kPlanWorkerSocket);
  posix_spawn_file_actions_addclosefrom_np(&files, kPlanWorkerSocket + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int failed =
      ::posix_spawn(&process, program.c_str(), &files, &attributes, arguments.data(), ::environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed;
}

}  // namespace

Result<std::unique_ptr<PlanProcess>> PlanProcess::start(const PlanProcessOptions& options) {
  Pair pair;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(ErrorCode::Unavailable,
                std::string("planning could not be started: ") + std::strerror(errno));
  pair.ours = ends[0];
  pair.theirs = ends[1];
  std::vector<std::string> words = {"weft",     "plan-worker",
                                    "--blobs",  options.blobs.string(),
                                    "--jobs",   options.jobs.string(),
                                    "--memory", std::to_string(options.memory_max.value),
                                    "--parent", std::to_string(::getpid())};
  if (options.copy_rate) {
    words.emplace_back("--copy-rate");
    words.push_back(std::to_string(*options.copy_rate));
  }
  pid_t process = 0;
  if (const int failed = spawn(process, options.program.string(), words, pair.theirs); failed != 0)
    return fail(ErrorCode::Unavailable,
                "planning could not be started: " + options.program.string() + ": " + std::strerror(failed));
  return std::unique_ptr<PlanProcess>(new PlanProcess(options, std::exchange(pair.ours, -1), process));
}

PlanProcess::PlanProcess(const PlanProcessOptions& options, int socket, pid_t process)
    : options_(options), socket_(socket), process_(process) {}

PlanProcess::~PlanProcess() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(socket_);
}

void PlanProcess::cancel() {
  cancelled_ = true;
  ::shutdown(socket_, SHUT_RDWR);
}

Bytes PlanProcess::resident() const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/statm");
  int64_t size = 0, pages = 0;
  file >> size >> pages;
  return Bytes{pages * ::sysconf(_SC_PAGESIZE)};
}

Result<PlanReply> PlanProcess::ask(const StartPlanning& request, const PlanTaskAt& task, Duration time_max) {
  FramePipe pipe(socket_);
  pipe.set_deadline(monotonic_now() + time_max);
  if (const Status sent = send_question(pipe, request, task); !sent)
    return fail(end(sent.error(), task, time_max));
  bool is_broken = false;
  auto reply = receive_answer(pipe, is_broken);
  if (!reply && is_broken) return fail(end(reply.error(), task, time_max));
  return reply;
}

// Of a process that did not answer as it should: what became of it.
Error PlanProcess::end(const Error& error, const PlanTaskAt& task, Duration time_max) {
  const std::string what = task.task == proto::PlanTask::Check ? "checking it" : "planning";
  int status = 0;
  pid_t ended = 0;
  if (error.code == ErrorCode::Unavailable && !cancelled_)  // it hung up: by itself, its status says why
    for (const Instant deadline = monotonic_now() + kGraceToEnd;
         (ended = ::waitpid(process_, &status, WNOHANG)) == 0 && monotonic_now() < deadline;)
      ::poll(nullptr, 0, 1);
  if (ended != process_) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  process_ = 0;
  if (cancelled_) return {ErrorCode::Cancelled, what + " was ended, for it is not wanted any more"};
  if (error.code == ErrorCode::Timeout)
    return {ErrorCode::Timeout, what + " was ended after " + amount(time_max) +
                                    (task.task == proto::PlanTask::Check
                                         ? std::string()
                                         : ": the model is too large for this broker (weft broker "
                                           "--plan-seconds)")};
  if (ended <= 0)
    return {ErrorCode::Internal, what + " was ended, for it said what it may not: " + error.message};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kPlanWorkerOutOfMemory)
    return {ErrorCode::ResourceExhausted,
            what + " took more than " + amount(options_.memory_max) +
                " of memory: the model is too large for this broker (weft broker --plan-memory)"};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    return {ErrorCode::ResourceExhausted,
            what + " was killed, as the system does where memory is short (weft broker --plan-memory)"};
  if (WIFSIGNALED(status))
    return {ErrorCode::Internal, what + " ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
                                     ::strsignal(WTERMSIG(status)) + ")"};
  return {ErrorCode::Internal, what + " ended with exit status " + std::to_string(WEXITSTATUS(status))};
}

}  // namespace weft::broker
