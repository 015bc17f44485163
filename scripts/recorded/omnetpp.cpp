// Discrete-event simulation of a switched Ethernet, to be recorded and compared with the built-in workload omnetpp.
//
// Written anew after Varga (European Simulation Multiconference 2001): modules, gates and messages are objects on glibc's heap;
// future events are a binary heap of pointers to messages, by time and then by order of insertion, and each message knows its
// place there; an event is a virtual call of its module; what a module sends follows a chain of gates to the next. Objects have
// the sizes that the built-in workload (engine/workloads/src/omnetpp) gives them, and hosts, switches and traffic are its own.
//
// usage: omnetpp HOSTS SEED EVENTS
//
// Recording begins with the first event. Prints how many frames were made, delivered, and are under way.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "flatwalk.h"

static const int PORTS = 16, UPWARDS = 8;
/// Seconds: of a byte, of a line, between frames, and on average between a host's frames.
static const double BYTE = 80e-9, LINE = 50e-9, GAP = 960e-9, INTERVAL = 100 * 80e-9 * 782;

struct Module;

enum Kind { TIMER, OUTPUT, TRANSMITTED, ARRIVE, RELAY, DELIVER };

struct Object {
    const char *name;
    Object *owner, *first, *last, *before, *after;
    Object() : name(0), owner(0), first(0), last(0), before(0), after(0) {}
    virtual ~Object() {}
};

struct Message : Object {
    double created, sent, priority;
    int length, error;
    void *parameters, *encapsulated, *context;
    int from_module, from_gate, to_module, to_gate;
    Module *module;
    Kind kind;
    double time;
    uint64_t order;
    long place;
    long identifier, hops, protocol, checksum;
    long source, destination;
    double made;
    char rest[16];
    Message()
        : created(0), sent(0), priority(0), length(0), error(0), parameters(0), encapsulated(0), context(0), from_module(-1),
          from_gate(-1), to_module(-1), to_gate(-1), module(0), kind(TIMER), time(0), order(0), place(-1), identifier(0), hops(0),
          protocol(0), checksum(0), source(0), destination(0), made(0) {}
};

/// What waits at a port.
struct Element {
    Element *next;
    Message *frame;
    long bytes;
};

struct Gate : Object {
    Gate *to;
    Module *module;
    double delay;
    long number, passed;
    char rest[8];
};

struct Module : Object {
    long number;
    virtual void handle(Message *message) = 0;
};

static_assert(sizeof(Message) == 240 && sizeof(Gate) == 104 && sizeof(Element) == 24, "chunks of 256, 112 and 32 bytes");

/// Future events.
struct Heap {
    std::vector<Message *> events;
    uint64_t inserted;

    static bool before(const Message *a, const Message *b) {
        return a->time < b->time || (a->time == b->time && a->order < b->order);
    }

    void put(long at, Message *event) {
        events[at] = event;
        event->place = at;
    }

    void insert(Message *event) {
        event->order = inserted++;
        long at = events.size();
        events.push_back(event);
        while (at > 0 && before(event, events[(at - 1) / 2])) {
            put(at, events[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        put(at, event);
    }

    Message *first() {
        Message *event = events[0], *last = events.back();
        events.pop_back();
        long count = events.size(), at = 0;
        for (long child; (child = 2 * at + 1) < count; at = child) {
            if (child + 1 < count && before(events[child + 1], events[child]))
                child++;
            if (!before(events[child], last))
                break;
            put(at, events[child]);
        }
        if (count)
            put(at, last);
        event->place = -1;
        return event;
    }
};

static Heap heap;
static double now;
static std::mt19937_64 drawn;
static long made, delivered;

static double unit() { return (drawn() >> 11) * (1.0 / 9007199254740992.0); }

static void schedule(Message *message, Kind kind, Module *module, double time) {
    message->sent = now;
    message->time = time;
    message->kind = kind;
    message->module = module;
    heap.insert(message);
}

struct Port : Module {
    Module *node;
    bool sends;
    Element *first_waiting, *last_waiting;
    Message *ended;
    Gate *gates[4];
    long sent, received, bytes_sent, bytes_received;
    char rest[464];

    Port(Module *node)
        : node(node), sends(false), first_waiting(0), last_waiting(0), sent(0), received(0), bytes_sent(0), bytes_received(0) {
        for (int i = 0; i < 4; i++) {
            gates[i] = new Gate;
            gates[i]->owner = this;
            gates[i]->module = this;
            gates[i]->delay = 0;
            gates[i]->to = 0;
        }
        gates[0]->to = gates[1];
        gates[2]->to = gates[3];
        gates[3]->module = this;
        ended = new Message;
    }

    void connect(Port *other) { gates[1]->to = other->gates[2]; }

    void start(Message *frame) {
        sends = true;
        double taken = frame->length * BYTE;
        Gate *gate = gates[0];
        double delay = gate->delay;
        for (; gate->to; gate = gate->to)
            delay += gate->to->delay;
        schedule(frame, ARRIVE, gate->module, now + taken + LINE + delay);
        schedule(ended, TRANSMITTED, this, now + taken + GAP);
    }

    void handle(Message *message);
};

/// Host or switch.
struct Node : Module {
    int level;
    Port *up;
    Node *parent;
    long events;
    char rest[392];
};

struct Host : Node {
    Message *timer;
    char *application;
    void handle(Message *message);
};

struct Switch : Node {
    std::pair<long, Port *> *table; // first host below each port
    int below;
    void handle(Message *message);
};

void Port::handle(Message *message) {
    switch (message->kind) {
    case OUTPUT:
        if (sends) {
            Element *element = new Element;
            element->next = 0;
            element->frame = message;
            element->bytes = message->length;
            (last_waiting ? last_waiting->next : first_waiting) = element;
            last_waiting = element;
        } else {
            start(message);
        }
        break;
    case TRANSMITTED:
        sent++;
        if (Element *element = first_waiting) {
            Message *frame = element->frame;
            first_waiting = element->next;
            if (!first_waiting)
                last_waiting = 0;
            delete element;
            start(frame);
        } else {
            sends = false;
        }
        break;
    default:
        received++;
        bytes_received += message->length;
        schedule(message, static_cast<Node *>(node)->level ? RELAY : DELIVER, node, now);
    }
}

static std::vector<Host *> hosts;

/// One frame in eight leaves each switch upwards.
static long destination(long host) {
    long size = PORTS, all = hosts.size();
    while (size < all && drawn() % UPWARDS == 0)
        size *= PORTS;
    for (;; size *= PORTS) {
        long base = host / size * size, count = std::min(size, all - base);
        if (count > 1) {
            long other = base + drawn() % (count - 1);
            return other < host ? other : other + 1;
        }
    }
}

void Host::handle(Message *message) {
    events++;
    if (message->kind == DELIVER) {
        delivered++;
        delete message;
        return;
    }
    Message *frame = new Message;
    frame->created = frame->made = now;
    frame->source = number;
    frame->destination = destination(number);
    frame->length = 64 + drawn() % (1500 - 64 + 1);
    made++;
    schedule(frame, OUTPUT, up, now);
    schedule(timer, TIMER, this, now - INTERVAL * std::log(1 - unit()));
}

void Switch::handle(Message *message) {
    events++;
    long to = message->destination;
    Port *port = up;
    if (to >= table[0].first && to < table[below].first) {
        int low = 0;
        for (int size = PORTS / 2; size; size /= 2)
            if (low + size < below && to >= table[low + size].first)
                low += size;
        port = table[low].second;
    }
    schedule(message, OUTPUT, port, now);
}

static_assert(sizeof(Port) == 632 && sizeof(Host) == 504 && sizeof(Switch) == 504, "chunks of 640 and 512 bytes");

/// Hosts hang from switches, those from others, up to one. Returns the number of modules.
static long build(long count) {
    std::vector<Node *> level;
    long all = 0, reach = 1;
    for (long i = 0; i < count; i++) {
        Host *host = new Host;
        host->application = new char[504];
        host->number = i;
        host->level = 0;
        host->up = new Port(host);
        host->timer = new Message;
        hosts.push_back(host);
        level.push_back(host);
    }
    for (int number = 1; level.size() > 1; number++, all += level.size()) {
        std::vector<Node *> above;
        for (size_t i = 0; i < level.size(); i += PORTS) {
            Switch *node = new Switch;
            node->table = (std::pair<long, Port *> *)new char[504];
            node->number = above.size();
            node->level = number;
            node->below = std::min(level.size() - i, (size_t)PORTS);
            node->up = new Port(node);
            for (int below = 0; below < node->below; below++) {
                Port *port = new Port(node), *other = level[i + below]->up;
                level[i + below]->parent = node;
                port->connect(other);
                other->connect(port);
                node->table[below] = std::make_pair((long)(i + below) * reach, port);
            }
            node->table[node->below] = std::make_pair(std::min((long)(i + node->below) * reach, count), (Port *)0);
            above.push_back(node);
        }
        reach *= PORTS;
        level = above;
    }
    return all + count;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: omnetpp HOSTS SEED EVENTS\n");
        return 2;
    }
    long count = atol(argv[1]), events = atol(argv[3]);
    drawn.seed(strtoul(argv[2], 0, 10));
    long modules = build(count);
    for (size_t i = 0; i < hosts.size(); i++)
        schedule(hosts[i]->timer, TIMER, hosts[i], -INTERVAL * std::log(1 - unit()));
    flatwalk_start();
    for (long event = 0; event < events; event++) {
        Message *message = heap.first();
        now = message->time;
        message->module->handle(message);
    }
    flatwalk_stop();
    printf("steps=%ld modules=%ld made=%ld delivered=%ld seconds=%g\n", events, modules, made, delivered, now);
    fflush(stdout);
    _Exit(delivered > made);
}
