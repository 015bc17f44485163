// A minimum-cost flow by the network simplex, to be recorded and compared with the built-in workload mcf.
//
// Written anew after Löbel (ZIB SC 96-7, 1996) with the data structures of 429.mcf: nodes of 104 bytes and arcs of 64, which
// point at each other, artificial arcs in an array of their own, and a basket of pointers to candidates. The schedule is drawn as
// the built-in workload draws its own (engine/workloads/src/mcf).
//
// usage: mcf TRIPS DEADHEADS SEED [ITERATIONS]
//
// Recording begins with the simplex, where each trip has a vehicle, and ends after so many iterations or at the optimum. Prints
// what the flow costs; an optimum is verified.

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "flatwalk.h"

struct Arc;

struct Node {
    long potential;
    int up; // whether the basic arc leads to the predecessor
    Node *child, *pred, *sibling, *previous;
    Arc *basic, *first_out, *first_in, *spare;
    long flow;
    long subtree;
    int number, time;
};

enum State { BASIC, AT_LOWER };

struct Arc {
    long cost;
    Node *tail, *head;
    int state;
    Arc *next_out, *next_in;
    long flow;
    long own_cost;
};

static_assert(sizeof(Node) == 104 && sizeof(Arc) == 64, "sizes of 429.mcf");

static const int GROUP = 300, KEPT = 50, RENEWAL = 20;
static const long VEHICLE = 10000000, DEPOT_WAY = 15, DEADHEAD = 30;

struct Candidate {
    Arc *arc;
    long reduced, size;
};

static Node *nodes;
static Arc *arcs, *arcs_end, *artificial;
static long node_count, groups, group;
static Candidate basket[GROUP + KEPT];
static Candidate *order[GROUP + KEPT];
static long in_basket;

static inline long reduced_cost(const Arc *arc) { return arc->cost - arc->tail->potential + arc->head->potential; }

/// Sorts the basket by falling size, as far as it is kept.
static void sort_basket(long from, long to) {
    long left = from, right = to, pivot = order[(from + to) / 2]->size;
    do {
        while (order[left]->size > pivot)
            left++;
        while (pivot > order[right]->size)
            right--;
        if (left <= right) {
            Candidate *swapped = order[left];
            order[left++] = order[right];
            order[right--] = swapped;
        }
    } while (left <= right);
    if (from < right)
        sort_basket(from, right);
    if (left < to && left < KEPT)
        sort_basket(left, to);
}

static inline void fill(Arc *arc, long reduced) {
    Candidate *candidate = order[in_basket++];
    candidate->arc = arc;
    candidate->reduced = reduced;
    candidate->size = std::labs(reduced);
}

/// Multiple partial pricing: the arc that enters, and its reduced cost; none at the optimum.
static Arc *price(long *entering_cost) {
    long before = in_basket < KEPT ? in_basket : KEPT;
    in_basket = 0;
    for (long place = 1; place < before; place++) {
        Arc *arc = order[place]->arc;
        long reduced = reduced_cost(arc);
        if (arc->state == AT_LOWER && reduced < 0)
            fill(arc, reduced);
    }
    long first = group;
    do {
        for (Arc *arc = arcs + group; arc < arcs_end; arc += groups)
            if (arc->state > BASIC) {
                long reduced = reduced_cost(arc);
                if (reduced < 0)
                    fill(arc, reduced);
            }
        if (++group == groups)
            group = 0;
    } while (in_basket < KEPT && group != first);
    if (in_basket == 0)
        return 0;
    sort_basket(0, in_basket - 1);
    *entering_cost = order[0]->reduced;
    return order[0]->arc;
}

/// Where the ways up from an arc's ends meet; which node's basic arc leaves, on whose way, and what the cycle takes.
static Node *ratio(Node *tail, Node *head, Node **leaving, bool *on_head, long *flow) {
    long of_tail = VEHICLE, of_head = VEHICLE;
    Node *from_tail = 0, *from_head = 0;
    while (tail != head) {
        if (tail->subtree < head->subtree) {
            if (tail->up && tail->flow < of_tail) {
                of_tail = tail->flow;
                from_tail = tail;
            }
            tail = tail->pred;
        } else {
            if (!head->up && head->flow <= of_head) {
                of_head = head->flow;
                from_head = head;
            }
            head = head->pred;
        }
    }
    *on_head = from_head && of_head <= of_tail;
    *leaving = *on_head ? from_head : from_tail;
    *flow = *on_head ? of_head : of_tail;
    return tail;
}

static void send(Node *tail, Node *head, Node *join, long flow) {
    for (; tail != join; tail = tail->pred)
        tail->flow += tail->up ? -flow : flow;
    for (; head != join; head = head->pred)
        head->flow += head->up ? flow : -flow;
}

/// Hangs what hung from the leaving arc from the entering one.
static void rehang(Arc *arc, Node *below, Node *above, int up, long flow, Node *leaving, Node *join) {
    long size = leaving->subtree, covered = 0;
    Node *node = below, *father = above, *pred;
    for (;;) {
        pred = node->pred;
        if (node->sibling)
            node->sibling->previous = node->previous;
        if (node->previous)
            node->previous->sibling = node->sibling;
        else
            pred->child = node->sibling;
        node->sibling = father->child;
        if (father->child)
            father->child->previous = node;
        father->child = node;
        node->pred = father;
        node->previous = 0;
        int old_up = node->up;
        long old_flow = node->flow, old_size = node->subtree;
        Arc *old_arc = node->basic;
        node->up = up;
        node->flow = flow;
        node->basic = arc;
        node->subtree = size - covered;
        if (node == leaving)
            break;
        arc = old_arc;
        up = !old_up;
        flow = old_flow;
        covered = old_size;
        father = node;
        node = pred;
    }
    for (; pred != join; pred = pred->pred)
        pred->subtree -= size;
    for (; above != join; above = above->pred)
        above->subtree += size;
}

/// The node after those below `node`, which has no child, in a walk of all below `top`; none at its end.
static inline Node *after(Node *node, const Node *top) {
    while (node != top) {
        if (node->sibling)
            return node->sibling;
        node = node->pred;
    }
    return 0;
}

/// Adds to the potentials of a node and all below it.
static void adjust(Node *top, long change) {
    for (Node *node = top; node; node = node->child ? node->child : after(node, top))
        node->potential += change;
}

/// Computes all potentials anew.
static void renew() {
    Node *root = nodes;
    for (Node *node = root->child; node; node = node->child ? node->child : after(node, root)) {
        long above = node->pred->potential;
        node->potential = node->up ? above + node->basic->cost : above - node->basic->cost;
    }
}

/// Returns the number of iterations; less than `most` at the optimum.
static long simplex(long most) {
    long iterations = 0, reduced;
    Arc *arc;
    while (iterations < most && (arc = price(&reduced))) {
        Node *tail = arc->tail, *head = arc->head, *leaving;
        bool on_head;
        long flow;
        Node *join = ratio(tail, head, &leaving, &on_head, &flow);
        if (flow)
            send(tail, head, join, flow);
        Arc *left = leaving->basic;
        if (on_head)
            rehang(arc, head, tail, 0, flow, leaving, join);
        else
            rehang(arc, tail, head, 1, flow, leaving, join);
        adjust(on_head ? head : tail, on_head ? -reduced : reduced);
        arc->state = BASIC;
        left->state = AT_LOWER;
        if (++iterations % RENEWAL == 0)
            renew();
    }
    return iterations;
}

static void join_nodes(Arc *arc, Node *tail, Node *head, long cost, State state) {
    arc->cost = arc->own_cost = cost;
    arc->tail = tail;
    arc->head = head;
    arc->state = state;
    arc->next_out = tail->first_out;
    tail->first_out = arc;
    arc->next_in = head->first_in;
    head->first_in = arc;
}

/// The schedule, with a vehicle for each trip: all nodes hang from the depot, which hangs from the root.
static void build(long trips, long deadheads, unsigned long seed) {
    std::mt19937_64 random(seed);
    node_count = 2 * trips + 2;
    nodes = (Node *)calloc(node_count, sizeof(Node));
    artificial = (Arc *)calloc(node_count, sizeof(Arc));
    arcs = (Arc *)calloc(2 * trips + deadheads, sizeof(Arc));
    arcs_end = arcs + 2 * trips + deadheads;
    groups = (arcs_end - arcs + GROUP - 1) / GROUP;
    Node *root = nodes, *depot = nodes + 2 * trips + 1;
    std::vector<int> x(node_count), y(node_count);
    for (long i = 0; i < node_count; i++) {
        x[i] = random() & 255;
        y[i] = random() & 255;
    }
    Arc *arc = arcs;
    for (long trip = 1; trip <= trips; trip++)
        join_nodes(arc++, depot, nodes + trip, VEHICLE + DEPOT_WAY, BASIC);
    for (long trip = 1; trip <= trips; trip++)
        join_nodes(arc++, nodes + trips + trip, depot, DEPOT_WAY, BASIC);
    // A sample of all pairs of trips, by the later one.
    double pairs = (double)trips * (trips - 1) / 2, each = pairs / deadheads;
    for (long number = 0; number < deadheads; number++) {
        long from = number * each, to = (number + 1) * each;
        long pair = from + (to > from ? (long)(random() % (to - from)) : 0);
        long later = (1 + std::sqrt(1 + 8.0 * pair)) / 2;
        while (later * (later - 1) / 2 > pair)
            later--;
        while ((later + 1) * later / 2 <= pair)
            later++;
        long tail = trips + 1 + pair - later * (later - 1) / 2, head = 1 + later;
        long way = std::labs(x[tail] - x[head]) + std::labs(y[tail] - y[head]);
        join_nodes(arc++, nodes + tail, nodes + head, DEADHEAD + way, AT_LOWER);
    }
    for (long i = 0; i < node_count; i++) {
        Node *node = nodes + i;
        node->number = i;
        node->subtree = 1;
        if (node == root)
            continue;
        // The artificial arc of each node, and of the depot the basic one.
        join_nodes(artificial + i, node, root, VEHICLE * 10, node == depot ? BASIC : AT_LOWER);
        if (node == depot)
            continue;
        node->pred = depot;
        node->basic = arcs + i - 1;
        node->up = i > trips;
        node->flow = 1;
        node->potential = node->up ? DEPOT_WAY : -(VEHICLE + DEPOT_WAY);
        node->previous = i == 1 ? 0 : node - 1;
        node->sibling = i == 2 * trips ? 0 : node + 1;
    }
    artificial[depot - nodes].cost = 0;
    depot->pred = root;
    depot->child = nodes + 1;
    depot->basic = artificial + (depot - nodes);
    depot->up = 1;
    depot->subtree = node_count - 1;
    root->child = depot;
    root->subtree = node_count;
    for (long place = 0; place < GROUP + KEPT; place++)
        order[place] = basket + place;
}

/// The cost of the flow; -1 if it is none, or some arc would make an optimum cheaper.
static long verified(bool optimum) {
    long cost = 0;
    for (Node *node = nodes + 1; node < nodes + node_count; node++) {
        if (node->flow < 0 || reduced_cost(node->basic) != 0)
            return -1;
        cost += node->flow * node->basic->cost;
    }
    for (Arc *arc = arcs; optimum && arc < arcs_end; arc++)
        if (reduced_cost(arc) < 0)
            return -1;
    return cost;
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: mcf TRIPS DEADHEADS SEED [ITERATIONS]\n");
        return 2;
    }
    long most = argc == 5 ? atol(argv[4]) : LONG_MAX;
    build(atol(argv[1]), atol(argv[2]), strtoul(argv[3], 0, 10));
    flatwalk_start();
    long iterations = simplex(most);
    flatwalk_stop();
    long cost = verified(iterations < most);
    printf("steps=%ld cost=%ld\n", iterations, cost);
    return cost < 0;
}
