// Tests of the lanes (`lms3d/engine/native/src/lanes.h`) without TensorFlow: `lanes_test CASE [FAKE_DRIVER]`, see `test_lanes.py`.
//
// A random program plays the host that enqueues a step: it makes tensors, swaps them out, holds, fetches and lets them arrive, in
// any order that the rules allow, while other kernels take and overwrite whatever memory is free. Memory comes from an arena, which
// gives it out anew as soon as the host lets go of it: as TensorFlow's pool does.
//
// Ends with 0: all is as it should be; 3: a tensor came back with wrong bytes; 1: anything else, which it prints.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fake_cuda.h"
#include "lanes.h"

namespace lms3d {
namespace {

constexpr char kGarbage = 0x7e;
constexpr size_t kSizes[] = {4096, 10000, 65537};
constexpr double kRate = 100e6;  // bytes per second: 0.04 to 0.7 ms a copy

struct WrongBytes : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void SleepMicroseconds(int64_t microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// -- memory -----------------------------------------------------------------------------------------------------------------

// Memory of a device: the lowest piece that is large enough, free again with its last owner.
class Arena {
 public:
  explicit Arena(size_t bytes) : memory_(bytes, kGarbage) {}
  Owner Take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t begin = 0;
    for (const auto& [at, end] : taken_) {
      if (begin + bytes <= at) break;
      begin = end;
    }
    const size_t end = (begin + bytes + 63) / 64 * 64;
    Require(end <= memory_.size(), "the arena of the test is too small");
    taken_[begin] = end;
    return Owner(&memory_[begin], [this, begin](void*) {
      std::lock_guard<std::mutex> lock(mutex_);
      taken_.erase(begin);
    });
  }
  size_t pieces() {
    std::lock_guard<std::mutex> lock(mutex_);
    return taken_.size();
  }

 private:
  std::vector<char> memory_;
  std::mutex mutex_;
  std::map<size_t, size_t> taken_;
};

std::atomic<int> pinned{0};

Pinned NewPinned(size_t bytes) {
  ++pinned;
  char* memory = new char[bytes];
  const Owner owner(memory, [bytes](void* address) {
    --pinned;
    std::memset(address, kGarbage, bytes);
    delete[] static_cast<char*>(address);
  });
  return {memory, owner};
}

// -- devices ----------------------------------------------------------------------------------------------------------------

const FakeCalls* fake = nullptr;  // null: processors

struct Device {
  Device() : arena(8 << 20) {
    if (fake) stream = fake->new_stream();
  }
  ~Device() {
    if (stream) fake->free_stream(stream);
  }
  // A kernel: at once on a processor, which has no others beside it.
  void Launch(std::function<void()> work) {
    if (stream) return fake->launch(stream, std::move(work));
    work();
  }
  void Synchronize() {
    if (stream) fake->synchronize(stream);
  }
  Stream stream = nullptr;
  Arena arena;
};

std::string driver;

std::shared_ptr<Lane> NewLane(double rate = kRate) {
  if (!fake) return MemoryLane(rate, rate, 20e-6, "");
  fake->set_rate(rate);
  return CudaLane(driver);
}

// -- a random program -------------------------------------------------------------------------------------------------------

struct Tensor {
  int64_t slot;
  size_t bytes;
  int copies;
  Device* device;
};

// What the host does once all of `after` is done; `done` may come later, from another thread.
struct Action {
  std::function<void(std::function<void()> done)> run;
  std::vector<size_t> after;
  bool begun = false, done = false;
};

class Program {
 public:
  Program(Lane& lane, unsigned seed, std::vector<Device*> devices) : lane_(lane), random_(seed), devices_(std::move(devices)) {
    for (int64_t slot = 0; slot < 6; ++slot) {
      const size_t bytes = kSizes[Below(3)];
      tensors_.push_back({first_slot_ + slot, bytes, Below(3), devices_[Below(devices_.size())]});
      Require(lane_.Reserve(first_slot_ + slot, bytes).empty(), "no place");
    }
  }
  ~Program() {
    for (const Tensor& tensor : tensors_) lane_.Drop(tensor.slot);
  }

  // paused: the devices begin when the host has enqueued all; a host that waited for them would never end.
  void Step(bool paused) {
    ++step_;
    actions_.clear();
    for (const Tensor& tensor : tensors_) Add(tensor);
    for (int i = 0; i < 12; ++i) AddScratch(*devices_[Below(devices_.size())]);
    if (fake) fake->pause(paused);
    RunAll();
    if (fake) fake->pause(false);
    for (Device* device : devices_) device->Synchronize();
    if (wrong_) throw WrongBytes(std::to_string(wrong_) + " tensors");
  }

  // The bytes of a step, both ways.
  std::pair<double, double> Bytes() const {
    std::pair<double, double> bytes;
    for (const Tensor& tensor : tensors_) {
      bytes.first += tensor.bytes;
      bytes.second += tensor.copies * tensor.bytes;
    }
    return bytes;
  }

 private:
  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  size_t Push(std::vector<size_t> after, std::function<void(std::function<void()>)> run) {
    actions_.push_back({std::move(run), std::move(after)});
    return actions_.size() - 1;
  }
  size_t PushNow(std::vector<size_t> after, std::function<void()> run) {
    return Push(std::move(after), [run](std::function<void()> done) {
      run();
      done();
    });
  }
  size_t PushWait(size_t after, const Tensor& tensor, int64_t copy, std::shared_ptr<Owner> memory, bool last) {
    return Push({after}, [=, &lane = lane_](std::function<void()> done) {
      lane.Wait(tensor.slot, copy, tensor.device->stream, [=](const Failure& failure) {
        Require(failure.empty(), failure);
        if (last) memory->reset();
        done();
      });
    });
  }

  void Add(const Tensor& tensor) {
    const char value = 1 + (tensor.slot * 7 + step_ * 13) % 100;
    const auto x = std::make_shared<Owner>();
    const int slow = Below(300);
    const size_t made = PushNow({}, [=] {
      *x = tensor.device->arena.Take(tensor.bytes);
      Fill(tensor, x->get(), value, slow);
    });
    const size_t out = PushNow({made}, [=, &lane = lane_] {
      const Failure failure = lane.CopyOut(tensor.slot, x->get(), tensor.bytes, tensor.device->stream, *x, NewPinned);
      Require(failure.empty(), failure);
    });
    PushWait(out, tensor, kOut, x, true);
    for (int64_t copy = 0; copy < tensor.copies; ++copy) {
      const auto z = std::make_shared<Owner>();
      const size_t fetched = PushNow({out}, [=, &lane = lane_] {
        *z = tensor.device->arena.Take(tensor.bytes);
        const Failure failure = lane.CopyIn(tensor.slot, copy, z->get(), tensor.bytes, tensor.device->stream, *z);
        Require(failure.empty(), failure);
      });
      const size_t arrived = PushWait(fetched, tensor, copy, z, false);
      PushNow({arrived}, [=] {
        Read(tensor, z->get(), value);
        z->reset();
      });
    }
  }

  void AddScratch(Device& device) {
    const size_t bytes = kSizes[Below(3)];
    const int slow = Below(300);
    PushNow({}, [=, &device] {
      const Owner memory = device.arena.Take(bytes);
      Fill({0, bytes, 0, &device}, memory.get(), kGarbage, slow);
    });
  }

  static void Fill(const Tensor& tensor, void* memory, char value, int slow_microseconds) {
    tensor.device->Launch([=, bytes = tensor.bytes] {
      SleepMicroseconds(slow_microseconds);
      std::memset(memory, value, bytes);
    });
  }
  void Read(const Tensor& tensor, const void* memory, char value) {
    tensor.device->Launch([this, memory, value, bytes = tensor.bytes] {
      const char* at = static_cast<const char*>(memory);
      for (size_t i = 0; i < bytes; ++i) {
        if (at[i] != value) {
          ++wrong_;
          return;
        }
      }
    });
  }

  void RunAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (size_t left = actions_.size(); left; --left) {
      std::vector<size_t> ready;
      changed_.wait(lock, [&] {
        ready = Ready();
        return !ready.empty();
      });
      Action& action = actions_[ready[Below(ready.size())]];
      action.begun = true;
      lock.unlock();
      action.run([this, &action] {
        std::lock_guard<std::mutex> done(mutex_);
        action.done = true;
        changed_.notify_all();
      });
      lock.lock();
    }
    changed_.wait(lock, [this] {
      for (const Action& action : actions_) {
        if (!action.done) return false;
      }
      return true;
    });
  }
  std::vector<size_t> Ready() const {
    std::vector<size_t> ready;
    for (size_t i = 0; i < actions_.size(); ++i) {
      bool free = !actions_[i].begun;
      for (const size_t before : actions_[i].after) free = free && actions_[before].done;
      if (free) ready.push_back(i);
    }
    return ready;
  }

  static inline std::atomic<int64_t> next_slot_{0};
  Lane& lane_;
  std::mt19937 random_;
  std::vector<Device*> devices_;
  const int64_t first_slot_ = next_slot_.fetch_add(6);
  std::vector<Tensor> tensors_;
  int step_ = 0;
  std::atomic<int> wrong_{0};
  std::vector<Action> actions_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Another function of the same lane, whose slots come and go.
void Bystander(Lane& lane, Device& device, const std::atomic<bool>& stop) {
  while (!stop) {
    const int64_t slot = 1'000'000;
    const Owner memory = device.arena.Take(4096);
    Require(lane.CopyOut(slot, memory.get(), 4096, device.stream, memory, NewPinned).empty(), "bystander, out");
    lane.Wait(slot, kOut, device.stream, [](const Failure&) {});
    Require(lane.CopyIn(slot, 0, memory.get(), 4096, device.stream, memory).empty(), "bystander, back");
    lane.Drop(slot);
    lane.Take();
  }
}

void Programs(int count) {
  for (int seed = 0; seed < count; ++seed) {
    Device devices[2];
    {
      const auto lane = NewLane();
      Program program(*lane, seed, {&devices[0], &devices[1]});
      for (int step = 0; step < 4; ++step) {
        program.Step(step == 2);
        const Counters counted = lane->Take();
        const auto [out, in] = program.Bytes();
        Require(counted.out_bytes == out && counted.in_bytes == in, "other bytes were counted than copied");
        Require(counted.out_seconds > 0, "no seconds were counted");
      }
    }
    Require(devices[0].arena.pieces() + devices[1].arena.pieces() == 0, "memory of a device is held");
    Require(pinned == 0, "page-locked memory is held");
  }
}

// -- cases ------------------------------------------------------------------------------------------------------------------

void SixPrograms() { Programs(6); }

// For mutations, each of which shows early. Without its waits a copy may end after the step, and is counted later.
void UntilWrong() {
  for (int seed = 0; seed < 15; ++seed) {
    Device devices[2];
    const auto lane = NewLane();
    Program program(*lane, seed, {&devices[0], &devices[1]});
    for (int step = 0; step < 4; ++step) program.Step(step == 2);
  }
}

void BesideOthers() {
  Device devices[2], its;
  const auto lane = NewLane();
  std::atomic<bool> stop{false};
  std::thread bystander([&] { Bystander(*lane, its, stop); });
  {
    Program one(*lane, 1, {&devices[0]}), other(*lane, 2, {&devices[1]});
    std::thread second([&] {
      for (int step = 0; step < 4; ++step) other.Step(false);
    });
    for (int step = 0; step < 4; ++step) one.Step(false);
    second.join();
  }
  stop = true;
  bystander.join();
}

// A tensor on its way out and back, of which nobody heard; returns how often `then` was called.
std::shared_ptr<std::atomic<int>> UnderWay(Lane& lane, Device& device, bool waiting) {
  const auto heard = std::make_shared<std::atomic<int>>(0);
  const Owner x = device.arena.Take(65537), z = device.arena.Take(65537);
  Require(lane.CopyOut(1, x.get(), 65537, device.stream, x, NewPinned).empty(), "out");
  Require(lane.CopyIn(1, 0, z.get(), 65537, device.stream, z).empty(), "back");
  for (const int64_t copy : {kOut, int64_t{0}}) {
    if (waiting) lane.Wait(1, copy, device.stream, [heard](const Failure&) { ++*heard; });
  }
  return heard;
}

void AFailedStep() {
  Device device;
  const auto lane = NewLane(10e6);
  UnderWay(*lane, device, false);
  Require(device.arena.pieces() == 2, "a lane lets go of memory that it copies");
  Require(lane->Settle().empty(), "settle");
  Require(device.arena.pieces() == 0, "memory is held after Settle");
  int heard = 0;
  lane->Wait(1, kOut, device.stream, [&](const Failure& failure) { heard += failure.empty(); });
  lane->Wait(7, 0, device.stream, [&](const Failure& failure) { heard += failure.empty(); });
  Require(heard == 2, "a copy that has ended, or never began, is waited for");
  Program(*lane, 3, {&device}).Step(false);
}

void Drop() {
  Device device;
  const auto lane = NewLane(10e6);
  UnderWay(*lane, device, true);
  lane->Drop(1);
  lane->Drop(1);
  Require(pinned == 0, "a slot that was dropped holds page-locked memory");
  Require(lane->CopyIn(1, 0, nullptr, 65537, device.stream, {}) == "the slot does not hold such a tensor", "a dropped slot");
  lane->Settle();
  Require(device.arena.pieces() == 0, "a slot that was dropped holds memory of the device");
}

void Destruction() {
  for (const bool waiting : {true, false}) {
    Device device;
    auto lane = NewLane(10e6);
    const auto heard = UnderWay(*lane, device, waiting);
    lane.reset();
    Require(*heard == (waiting ? 2 : 0), "somebody waits for a lane that is gone");
    Require(device.arena.pieces() == 0 && pinned == 0, "a lane that is gone holds memory");
  }
}

// A lane is closed while a function runs: what it still asks for finds no lane, what it asked for ends.
void ClosedMeanwhile() {
  Device device;
  const int64_t number = AddLane(NewLane());
  std::atomic<int> asked{0}, heard{0};
  std::thread function([&] {
    while (const auto lane = GetLane(number)) {
      const Owner memory = device.arena.Take(4096);
      ++asked;
      Require(lane->CopyOut(asked, memory.get(), 4096, device.stream, memory, NewPinned).empty(), "out");
      lane->Wait(asked, kOut, device.stream, [&](const Failure&) { ++heard; });
    }
  });
  while (asked == 0) SleepMicroseconds(1000);  // a busy machine starts the thread late
  SleepMicroseconds(5000);
  RemoveLane(number);
  RemoveLane(number);
  function.join();
  Require(asked > 0 && asked == heard, "somebody waits for a lane that was closed");
  Require(device.arena.pieces() == 0 && pinned == 0, "a lane that was closed holds memory");
}

void OtherSizes() {
  Device device;
  const auto lane = NewLane();
  UnderWay(*lane, device, true);
  const Owner z = device.arena.Take(100);
  Require(!lane->CopyIn(1, 1, z.get(), 100, device.stream, z).empty(), "a slot gives back other bytes than it holds");
  Require(!lane->CopyIn(9, 0, z.get(), 100, device.stream, z).empty(), "a slot that never was gives bytes");
  Require(lane->CopyOut(1, z.get(), 100, device.stream, z, NewPinned).empty(), "a slot takes another size");
  lane->Wait(1, kOut, device.stream, [](const Failure&) {});
  Require(lane->CopyOut(2, z.get(), 0, device.stream, z, NewPinned).empty(), "an empty tensor");
  lane->Settle();
  const double counted = lane->Take().out_bytes;
  Require(counted == 65537 + 100, "counted " + std::to_string(counted));
  Require(lane->Take().out_bytes == 0, "bytes are counted twice");
}

// -- cases of a link between processors --------------------------------------------------------------------------------------

void Rates() {
  Device device;
  const auto lane = MemoryLane(20e6, 0, 0.01, "");
  const Owner x = device.arena.Take(1 << 20), z = device.arena.Take(1 << 20);
  const auto began = std::chrono::steady_clock::now();
  lane->CopyOut(1, x.get(), 1 << 20, nullptr, x, NewPinned);
  lane->Settle();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  Require(seconds >= 0.01 + (1 << 20) / 20e6, "a copy out is faster than its link");
  lane->CopyIn(1, 0, z.get(), 1 << 20, nullptr, z);
  lane->Settle();
  const Counters counted = lane->Take();
  Require(counted.out_seconds >= 0.01 + (1 << 20) / 20e6 && counted.in_seconds >= 0.01, "seconds that the link was busy");
  Require(counted.processor_seconds > 0, "the processor copied for nothing");
}

// Two lanes of one process, as two processes, share a link: together they are no faster than one, and of two that book at once one
// waits for the other. `held` is such another.
void Bus() {
  char folder[] = "/tmp/lanes_test_XXXXXX";
  Require(mkdtemp(folder), "no folder");
  {
    Device device;
    const std::shared_ptr<Lane> lanes[] = {MemoryLane(1e6, 0, 0, folder), MemoryLane(1e6, 0, 0, folder)};
    const auto began = std::chrono::steady_clock::now();
    const Owner x = device.arena.Take(10000);
    for (const auto& lane : lanes) lane->CopyOut(1, x.get(), 10000, nullptr, x, NewPinned);
    for (const auto& lane : lanes) lane->Settle();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    Require(seconds >= 0.02, "two lanes are faster than their bus");

    const int held = open((std::string(folder) + "/out").c_str(), O_RDWR);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    Require(held >= 0 && fcntl(held, F_SETLK, &lock) == 0, "no lock");
    std::atomic<bool> ended{false};
    lanes[0]->CopyOut(1, x.get(), 100, nullptr, x, NewPinned);
    lanes[0]->Wait(1, kOut, nullptr, [&](const Failure&) { ended = true; });
    SleepMicroseconds(20'000);
    Require(!ended, "a lane books while another of its process does");
    close(held);
    lanes[0]->Settle();
    while (!ended) SleepMicroseconds(100);
  }
  for (const char* name : {"/out", "/back"}) remove((std::string(folder) + name).c_str());
  remove(folder);
  std::string text;
  try {
    MemoryLane(0, 0, 0, "/no/such/folder");
  } catch (const std::exception& error) {
    text = error.what();
  }
  Require(text == "cannot open the bus /no/such/folder/out: No such file or directory", text);
}

void NoMemory() {
  const auto lane = MemoryLane(0, 0, 0, "");
  const Failure failure = lane->Reserve(1, size_t{1} << 60);
  Require(failure.find("no memory for 1152921504606846976 bytes") == 0, failure);
}

// -- cases of CUDA's driver --------------------------------------------------------------------------------------------------

// One tensor out and back; what failed first.
Failure OutAndBack(Lane& lane, Device& device) {
  Failure first;
  const auto note = [&](const Failure& failure) {
    if (first.empty()) first = failure;
  };
  const Owner x = device.arena.Take(4096), z = device.arena.Take(4096);
  note(lane.CopyOut(77, x.get(), 4096, device.stream, x, NewPinned));
  if (first.empty()) lane.Wait(77, kOut, device.stream, note);
  if (first.empty()) note(lane.CopyIn(77, 0, z.get(), 4096, device.stream, z));
  if (first.empty()) lane.Wait(77, 0, device.stream, note);
  return first;
}

void DriverErrors() {
  for (const std::string call :
       {"cuStreamGetCtx", "cuCtxPushCurrent", "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent",
        "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"}) {
    Device device;
    {
      const auto lane = NewLane();
      fake->fail_next(call.c_str(), 700);
      const Failure failure = OutAndBack(*lane, device);
      Require(failure.find("CUDA's " + call + " failed while copying 4096 bytes ") == 0, call + ": " + failure);
      Require(failure.find(": an illegal memory access was encountered") != Failure::npos, failure);
      Require(failure.find('\n') == Failure::npos, "more than a line: " + failure);
      Require(lane->Settle().empty(), "settle after " + call);
      Require(device.arena.pieces() == 0, "memory is held after a failure of " + call);
      lane->Take();
      Require(OutAndBack(*lane, device).empty(), "again after " + call);
      lane->Settle();
      const Counters counted = lane->Take();
      Require(counted.out_bytes == 4096 && counted.in_bytes == 4096, "counted wrongly after " + call);
      Program(*lane, 5, {&device}).Step(false);
    }
    Require(fake->streams() == 0 && fake->events() == 0 && fake->pushed() == 0, "left over after " + call);
  }
}

void FailedWaits() {
  Device device;
  const auto lane = NewLane(1e6);
  const Owner x = device.arena.Take(4096);
  Require(lane->CopyOut(1, x.get(), 4096, device.stream, device.arena.Take(64), NewPinned).empty(), "out");
  fake->fail_next("cuStreamWaitEvent", 1);
  Failure found;
  lane->Wait(1, kOut, device.stream, [&](const Failure& failure) { found = failure; });
  Require(found == "CUDA's cuStreamWaitEvent failed while waiting for a copy: error 1", found);
  Require(device.arena.pieces() == 2, "memory is given back before its copy has ended");
  fake->fail_next("cuStreamSynchronize", 1);
  const Failure failure = lane->Settle();
  Require(failure.find("CUDA's cuStreamSynchronize failed while waiting for the copies of a step that failed") == 0, failure);
}

void NothingToPin() {
  Device device;
  const auto lane = NewLane();
  const Owner x = device.arena.Take(4096);
  const Failure failure = lane->CopyOut(1, x.get(), 4096, device.stream, x, [](size_t) { return Pinned(); });
  Require(failure == "no page-locked host memory for 4096 bytes that are swapped out: raise TF_GPU_HOST_MEM_LIMIT_IN_MB", failure);
  Require(OutAndBack(*lane, device).empty(), "afterwards");
}

// Steps whose counters nobody takes between them.
void CountedLate() {
  Device device;
  const auto lane = NewLane();
  for (int step = 0; step < 3; ++step) {
    Require(OutAndBack(*lane, device).empty(), "a step");
    device.Synchronize();
  }
  const Counters counted = lane->Take();
  Require(counted.out_bytes == 3 * 4096 && counted.in_bytes == 3 * 4096, "steps before the last are not counted");
}

void Missing() {
  for (const auto& [name, expected] : {std::pair<std::string, std::string>{"libno-such.so.1", " cannot be loaded: "},
                                       std::pair<std::string, std::string>{"libm.so.6", " has no cuStreamGetCtx"}}) {
    std::string text;
    try {
      CudaLane(name);
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    Require(text.find("CUDA's driver " + name + expected) == 0, text);
  }
}

const std::map<std::string, void (*)()> kOfAll = {
    {"programs", SixPrograms},      {"until_wrong", UntilWrong},     {"beside_others", BesideOthers},
    {"a_failed_step", AFailedStep}, {"drop", Drop},                  {"destruction", Destruction},
    {"other_sizes", OtherSizes},    {"closed_meanwhile", ClosedMeanwhile},
};
const std::map<std::string, void (*)()> kOfMemory = {{"rates", Rates}, {"bus", Bus}, {"no_memory", NoMemory}};
const std::map<std::string, void (*)()> kOfCuda = {
    {"driver_errors", DriverErrors}, {"failed_waits", FailedWaits}, {"nothing_to_pin", NothingToPin},
    {"counted_late", CountedLate},   {"missing", Missing},
};

void (*Find(const std::string& name))() {
  for (const auto& cases : {kOfAll, fake ? kOfCuda : kOfMemory}) {
    if (const auto found = cases.find(name); found != cases.end()) return found->second;
  }
  throw std::runtime_error("no such case: " + name);
}

void UseFakeDriver(const char* path) {
  driver = path;
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  Require(library, "the fake driver cannot be loaded");
  fake = reinterpret_cast<const FakeCalls* (*)()>(dlsym(library, "fake_cuda"))();
}

}  // namespace
}  // namespace lms3d

int main(int count, char** arguments) {
  try {
    lms3d::Require(count > 1, "lanes_test CASE [FAKE_DRIVER]");
    if (count > 2) lms3d::UseFakeDriver(arguments[2]);
    lms3d::Find(arguments[1])();
  } catch (const lms3d::WrongBytes& error) {
    std::fprintf(stderr, "wrong bytes: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
