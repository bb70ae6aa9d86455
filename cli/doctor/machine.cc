#include "cli/doctor/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "cli/doctor/small_files.h"
#include "cli/quantities.h"
#include "peer/backend/host/host_memory.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMemoryMin = 128 * kMiB, kMemoryFew = 1024 * kMiB;  // the program alone takes 70 MB
constexpr int64_t kDiskFew = 512 * kMiB;
constexpr int64_t kDescriptorsMin = 128, kDescriptorsFew = 1024;  // a peer dials up to 512 at once
constexpr int64_t kThreadsFew = 64;
constexpr int kDriverMin = 580;  // NVIDIA's, that CUDA 13 needs
constexpr size_t kTrialSize = 64 << 10;

// ---- disk

fs::path nearest_folder(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder, ignored);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

int write_all(int descriptor) {
  const std::vector<char> zeros(kTrialSize);
  for (size_t done = 0; done < zeros.size();) {
    const ssize_t size = ::write(descriptor, zeros.data() + done, zeros.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return errno;
    done += static_cast<size_t>(size);
  }
  return ::fsync(descriptor) == 0 ? 0 : errno;
}

// An errno; 0: it can be written. The file has no name, or loses it at once.
int try_to_write(const fs::path& folder) {
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = (folder / ".weft-doctor-").string() + std::string(6, 'X');
    descriptor = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor >= 0) ::unlink(name.c_str());
  }
  if (descriptor < 0) return errno;
  const int problem = write_all(descriptor);
  ::close(descriptor);
  return problem;
}

std::string disk_advice(int problem) {
  switch (problem) {
    case ENOSPC:
      return "make room there, or say --data-dir with a folder on another disk";
    case EDQUOT:
      return "this user's quota is used up: remove files, or ask for more";
    case EROFS:
      return "the disk can only be read (perhaps after an error: see dmesg); say --data-dir with another "
             "folder";
    case EACCES:
    case EPERM:
      return "run as the user who owns it, or say --data-dir with a folder of your own";
    default:
      return "see dmesg for what the disk says, or say --data-dir with another folder";
  }
}

// ---- driver

// The NVIDIA cards on the PCI bus.
int count_cards(const fs::path& root) {
  int cards = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", error)) {
    const auto vendor = read_small(entry.path() / "vendor"), kind = read_small(entry.path() / "class");
    if (vendor && kind && vendor->starts_with("0x10de") && kind->starts_with("0x03")) ++cards;
  }
  return cards;
}

// "580.65.06"; nothing: NVIDIA's driver does not run.
std::optional<std::string> driver_version(const fs::path& root) {
  if (auto version = read_small(root / "sys/module/nvidia/version")) return version;
  const auto text = read_small(root / "proc/driver/nvidia/version");
  if (!text) return std::nullopt;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..."
  for (const std::string& word : words_of(*text))
    if (word.find('.') != std::string::npos && word[0] >= '0' && word[0] <= '9') return word;
  return "unknown";
}

std::string cards_text(int cards) {
  return cards == 1 ? "an NVIDIA card is there" : fmt::format("{} NVIDIA cards are there", cards);
}

}  // namespace

Check check_device(const std::string& device, const OpenDevice& open) {
  const auto opened = open();
  if (opened) return {"device", CheckState::Ok, device + " works: " + *opened};
  return {"device", CheckState::Stops, device + " does not work: " + opened.error().message,
          device == "cpu" ? "run on another machine" : "put that right, or say --device cpu"};
}

Check check_driver(const fs::path& root, bool is_wanted) {
  const CheckState problem = is_wanted ? CheckState::Stops : CheckState::Warning;
  const int cards = count_cards(root);
  const auto version = driver_version(root);
  if (!version && cards == 0)
    return {"driver", is_wanted ? CheckState::Stops : CheckState::Ok, "no NVIDIA card is there",
            is_wanted ? "say --device cpu, or give this machine (or container: --gpus all) its card" : ""};
  if (!version) {
    std::error_code ignored;
    const bool nouveau = fs::exists(root / "sys/module/nouveau", ignored);
    return {"driver", problem,
            cards_text(cards) +
                (nouveau ? " with the driver nouveau, which cannot compute" : ", but no driver for it"),
            fmt::format("install NVIDIA's driver {} or newer, and start the machine again", kDriverMin)};
  }
  int major = 0;
  std::from_chars(version->data(), version->data() + version->size(), major);
  if (major < kDriverMin)
    return {"driver", problem, "NVIDIA's driver is " + *version,
            fmt::format("install {} or newer: CUDA 13 needs it", kDriverMin)};
  if (!is_wanted)
    return {"driver", CheckState::Ok,
            "NVIDIA's driver is " + *version + "; a peer takes the card with --device cuda"};
  return {"driver", CheckState::Ok, "NVIDIA's driver is " + *version};
}

Check check_memory(const fs::path& root) {
  const auto free = peer::free_memory(root);
  if (!free)
    return {"memory", CheckState::Warning, free.error().message, "say --memory with what weft may take"};
  const std::string seen = format_bytes(free->value) + " are free";
  if (free->value < kMemoryMin)
    return {"memory", CheckState::Stops, seen, "end other programs: weft alone takes 70 MB"};
  if (free->value < kMemoryFew)
    return {"memory", CheckState::Warning, seen,
            "end other programs, or expect small stages: a stage has its part of the weights three or four "
            "times"};
  return {"memory", CheckState::Ok, seen};
}

Check check_groups(const fs::path& root, unsigned processors) {
  const GroupLimits limits = group_limits(root);
  if (!limits.processors && !limits.threads && !limits.memory)
    return {"cgroup", CheckState::Ok, "no control group limits this process"};
  std::vector<std::string> parts;
  Check check{"cgroup", CheckState::Ok, {}};
  const auto advise = [&](const std::string& text) {
    check.state = CheckState::Warning;
    check.advice += (check.advice.empty() ? "" : "; ") + text;
  };
  if (limits.memory) parts.push_back("memory " + format_bytes(*limits.memory));
  if (limits.processors) {
    parts.push_back(fmt::format("{:.3g} of {} processors", *limits.processors, processors));
    if (*limits.processors < processors)
      advise(fmt::format("say --device cpu:{}: more threads than that stop each other",
                         std::max(1, static_cast<int>(*limits.processors))));
  }
  if (limits.threads) {
    parts.push_back(fmt::format("{} threads", *limits.threads));
    if (*limits.threads < kThreadsFew + processors)
      advise(fmt::format("let the group have {} threads (pids.max, docker --pids-limit)",
                         2 * (kThreadsFew + processors)));
  }
  check.seen = fmt::format("a control group leaves {}", fmt::join(parts, ", "));
  return check;
}

Check check_descriptors(const fs::path& root) {
  // "Max open files            1024                 524288               files"
  const auto limits = read_small(root / "proc/self/limits");
  const std::string key = "Max open files";
  const size_t at = limits ? limits->find(key) : std::string::npos;
  if (at == std::string::npos)
    return {"descriptors", CheckState::Warning, "the system does not say how many files may be open",
            "look whether ulimit -n says 1024 or more"};
  const auto words = words_of(limits->substr(at + key.size()));
  int64_t soft = INT64_MAX;  // "unlimited"
  if (!words.empty()) std::from_chars(words[0].data(), words[0].data() + words[0].size(), soft);
  if (soft == INT64_MAX) return {"descriptors", CheckState::Ok, "any number of files may be open"};
  Check check{"descriptors", CheckState::Ok, fmt::format("{} files may be open", soft)};
  if (soft >= kDescriptorsFew) return check;
  check.state = soft < kDescriptorsMin ? CheckState::Stops : CheckState::Warning;
  check.advice = "ulimit -n 4096 before weft is started, or LimitNOFILE=4096 in its unit";
  return check;
}

Check check_disk(const fs::path& folder) {
  const fs::path there = nearest_folder(folder);
  const int problem = try_to_write(there);
  struct statvfs disk {};
  const bool is_known = ::statvfs(there.c_str(), &disk) == 0;
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const std::string room = is_known ? format_bytes(free) + " free" : "its room unknown";
  if (problem != 0)
    return {"disk", CheckState::Stops,
            fmt::format("{} cannot be written: {} ({})", there.string(), std::strerror(problem), room),
            disk_advice(problem)};
  Check check{"disk", CheckState::Ok, fmt::format("{}: {}", there.string(), room)};
  if (is_known && free < kDiskFew) {
    check.state = CheckState::Warning;
    check.advice = "a peer needs next to nothing, but a broker, a result and a GPU's kernels do: make room";
  }
  return check;
}

}  // namespace weft::cli
